package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// attributeServer of a volume is the URL of its server. Required.
	attributeServer = "server"
	// publishedFile has a line for each time that a kubelet published a volume, with what the API and the provider answered the driver.
	publishedFile = "published"
	// contentFile has what is on the server; the rest of a volume says what the
	// driver was told.
	contentFile = "content"
)

// driver is the node plugin.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	name, node string
	state      string // folder: whose volumes are where
	answer     string // what the Kubernetes API said, if it was asked
	provider   string // socket of the provider to ask; "" for none
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}}}, nil
}

// NodeStageVolume fetches a volume.
func (d *driver) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, d.fetch(ctx, r.VolumeId, r.StagingTargetPath, r.VolumeContext, r.Secrets)
}

// NodeUnstageVolume writes a volume back.
func (d *driver) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.giveBack(ctx, r.VolumeId, r.StagingTargetPath)
}

// NodePublishVolume shows a volume that is staged, or fetches one that lives with
// its pod.
func (d *driver) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	resp := &csi.NodePublishVolumeResponse{}
	if r.StagingTargetPath == "" {
		if err := d.fetch(ctx, r.VolumeId, r.TargetPath, r.VolumeContext, r.Secrets); err != nil {
			return nil, err
		}
		return resp, d.published(ctx, r.TargetPath)
	}
	if err := tell(r.StagingTargetPath, r.VolumeContext, r.Secrets); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.TargetPath, 0o755); err != nil {
		return nil, err
	}
	if here, err := mounted(r.TargetPath); err != nil || here {
		return resp, err
	}
	if err := unix.Mount(r.StagingTargetPath, r.TargetPath, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s: %w", r.TargetPath, err)
	}
	if r.Readonly {
		if err := unix.Mount("", r.TargetPath, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return nil, fmt.Errorf("make %s read-only: %w", r.TargetPath, err)
		}
	}
	return resp, nil
}

func (d *driver) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if at, err := os.ReadFile(d.record(r.VolumeId) + ".at"); err == nil && string(at) == r.TargetPath {
		return &csi.NodeUnpublishVolumeResponse{}, d.giveBack(ctx, r.VolumeId, r.TargetPath)
	}
	return &csi.NodeUnpublishVolumeResponse{}, unmount(r.TargetPath)
}

func (d *driver) record(volume string) string {
	return filepath.Join(d.state, strings.ReplaceAll(volume, "/", "_"))
}

// fetch mounts a volume with what the server has of it, and notes where that is.
func (d *driver) fetch(ctx context.Context, volume, dir string, attributes, secrets map[string]string) error {
	server := attributes[attributeServer]
	if server == "" {
		return status.Errorf(codes.InvalidArgument, "volume %s has no attribute %s", volume, attributeServer)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if here, err := mounted(dir); err != nil || here {
		return err
	}
	content, err := ask(ctx, http.MethodGet, server, volume, nil)
	if err != nil {
		return err
	}
	for suffix, text := range map[string]string{"": server, ".at": dir} {
		if err := os.WriteFile(d.record(volume)+suffix, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := unix.Mount("csidriver", dir, "tmpfs", 0, "mode=0777"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := os.WriteFile(filepath.Join(dir, contentFile), content, 0o666); err != nil {
		return err
	}
	return tell(dir, attributes, secrets)
}

// published notes that a volume was published, in it.
func (d *driver) published(ctx context.Context, dir string) error {
	said := ""
	if d.provider != "" {
		var err error
		if said, err = askProvider(ctx, d.provider); err != nil {
			return status.Errorf(codes.Unavailable, "ask the provider: %v", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, publishedFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, "published", d.answer, said)
	return errors.Join(err, f.Close())
}

// giveBack writes what a pod has made of a volume to its server, and unmounts it.
func (d *driver) giveBack(ctx context.Context, volume, dir string) error {
	if here, err := mounted(dir); err != nil || !here {
		return err
	}
	server, err := os.ReadFile(d.record(volume))
	if err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(dir, contentFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := ask(ctx, http.MethodPut, string(server), volume, content); err != nil {
		return err
	}
	return unmount(dir)
}

// tell writes what the driver was told into a volume, for the test to read there.
func tell(dir string, attributes, secrets map[string]string) error {
	for file, told := range map[string]map[string]string{"attributes": attributes, "secrets": secrets} {
		old := map[string]string{}
		if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
			_ = json.Unmarshal(b, &old) // a pod's own file
		}
		for k, v := range told {
			old[k] = v
		}
		b, err := json.Marshal(old)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func ask(ctx context.Context, method, server, volume string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, server+"/"+volume, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s volume %s: the server answered %s", method, volume, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// mounted says whether something is mounted at dir.
func mounted(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := unix.Lstat(dir, &here); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	err := unix.Lstat(filepath.Dir(dir), &above)
	return here.Dev != above.Dev, err
}

func unmount(dir string) error {
	if here, err := mounted(dir); err == nil && here {
		if err := unix.Unmount(dir, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
