package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/elotl/kip/dev/cloudmodel/hardware"
	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/image/boot"
	"github.com/elotl/kip/internal/cloud/qemu"
)

// vendor is what SMBIOS says of EC2's machines, by which the image knows where its user data is.
const vendor = "Amazon EC2"

// anotherTime is what a machine's own clock says first: years before any certificate, so that it has to
// take the time from EC2.
const anotherTime = "2001-01-01T00:00:00"

// virtualize publishes the image and has virtual machines that boot what was uploaded, on a link
// that tells them their addresses.
func (e *EC2) virtualize(serving, ctx context.Context, cfg Config) error {
	manifest, err := boot.ReadManifest(cfg.Boot.Folder, runtime.GOARCH)
	if err != nil {
		return err
	}
	ami, err := e.publish(ctx, *cfg.Boot)
	if err != nil {
		return err
	}
	disk, err := e.download(ami, cfg, manifest)
	if err != nil {
		return fmt.Errorf("take image %s from the account: %w", ami, err)
	}
	c, err := qemu.New(ctx, qemu.Config{
		Config:      cfg.Local.Config,
		Image:       disk,
		Nameservers: cfg.Local.Nameservers,
		Vendor:      vendor,
		More:        []string{"-rtc", "base=" + anotherTime},
	})
	if err != nil {
		return err
	}
	e.machines.Use(c.Cloud)
	gateway, err := cfg.Local.Gateway()
	if err != nil {
		return err
	}
	addresses := hardware.Leases{
		Bridge:      cfg.Local.Bridge,
		Network:     cfg.Local.CIDR,
		Gateway:     gateway,
		Nameservers: cfg.Local.Nameservers,
		Known:       e.machines.Known,
		Log:         cfg.Log,
	}
	e.servers.Go(func() error { return addresses.Serve(serving) })
	return nil
}

// publish uploads and registers the image by the program that does so for an account at AWS.
func (e *EC2) publish(ctx context.Context, b Boot) (ami string, err error) {
	cmd := exec.CommandContext(ctx, b.Program, "image", "publish", "--region="+Region, "--arch="+runtime.GOARCH, "--image-folder="+b.Folder)
	cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+e.url, "AWS_ACCESS_KEY_ID="+AdministratorKeyID, "AWS_SECRET_ACCESS_KEY=any",
		"AWS_SESSION_TOKEN=",
		"AWS_PROFILE=", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("publish the image of %s: %w: %s", b.Folder, err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// imageFolder, beside the folder of the machines, has what an image's machines start from.
const imageFolder = "ami"

// download writes the disk of an image as it was uploaded, with what belongs to it beside it, and
// returns where it is.
func (e *EC2) download(ami string, cfg Config, m boot.Manifest) (_ string, err error) {
	snapshot := ""
	for _, i := range e.model.Images.All() {
		if i.ID == ami {
			snapshot = i.Snapshot
		}
	}
	uploaded, is := e.model.Snapshots.All()[snapshot]
	if !is {
		return "", fmt.Errorf("it is of snapshot %q, which is not there", snapshot)
	}
	raw, err := m.Output("raw")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(cfg.Local.StateDir), imageFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	stem := strings.TrimSuffix(raw.Name, filepath.Ext(raw.Name))
	for _, beside := range []string{stem + ".manifest.json", stem + ".efi"} {
		b, err := os.ReadFile(filepath.Join(cfg.Boot.Folder, beside))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, beside), b, 0o600); err != nil {
			return "", err
		}
	}
	disk, err := os.Create(filepath.Join(dir, raw.Name))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	for index, block := range uploaded.Blocks {
		if _, err := disk.WriteAt(block, int64(index)*ec2.BlockSize); err != nil {
			return "", err
		}
	}
	return disk.Name(), disk.Truncate(raw.Bytes)
}
