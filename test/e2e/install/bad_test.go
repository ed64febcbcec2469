//go:build e2e

package install

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/listen"
	"github.com/elotl/kip/dev/registry"
	"github.com/elotl/kip/internal/agent/configs"
	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// These tests provoke what docs/install.md has in "When it does not work", and look for its words where it says that they are.

// A release beside the world's own, of another node.
const (
	secondRelease = "second"
	secondPodName = "second-kip-0"
	// secondHook is the Job that Helm runs before all else.
	secondHook = "second-kip-crd-update"
)

// secondValues are the values of the second release, which has nothing that is in the way of the first one.
func secondValues(t *testing.T, change func(map[string]any)) string {
	t.Helper()
	return withValues(t, func(v map[string]any) {
		v["nodeName"] = "second-0"
		v["storageClass"] = map[string]any{"create": false}
		v["webhook"] = map[string]any{"enabled": false}
		v["policies"] = map[string]any{"enabled": false}
		v["nodeSelector"] = map[string]any{"kubernetes.io/hostname": "node-2"}
		change(v)
	})
}

// removeSecond removes the second release, which leaves nothing but the claim of its store.
func removeSecond(s *namespace.Space) {
	s.Helper()
	if out, err := helm(s.T, "uninstall", secondRelease, "--no-hooks", "--wait", "--ignore-not-found"); err != nil {
		s.Errorf("uninstall %s: %v\n%s", secondRelease, err, out)
	}
	label := "app.kubernetes.io/instance=" + secondRelease
	s.Kubectl("delete", "persistentvolumeclaims", "-n", kipNamespace, "-l", label)
	kinds := "jobs,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
	if left := s.Kubectl("get", kinds, "-n", kipNamespace, "-l", label, "-o", "name"); left != "" {
		s.Errorf("release %s is uninstalled, and there are\n%s", secondRelease, left)
	}
}

// ofKip is the namespace of the releases.
func ofKip(s *namespace.Space) *namespace.Space {
	return &namespace.Space{T: s.T, World: world, NS: kipNamespace}
}

func TestAClaimThatDoesNotBindIsNamed(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	folder, _ := chart(t)
	defer removeSecond(s)
	values := secondValues(t, func(v map[string]any) {
		v["persistence"] = map[string]any{"storageClassName": "nowhere"}
		v["crds"] = map[string]any{"upgrade": false}
	})
	if out, err := helm(t, "install", secondRelease, folder, "--values", values); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	ofKip(s).WaitEvent(secondPodName, "FailedScheduling", "pod has unbound immediate PersistentVolumeClaims")
	ofKip(s).WaitEvent("data-"+secondPodName, "ProvisioningFailed", `"nowhere" not found`)
}

func TestAnImageOfAnotherArchitectureIsNamed(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	arch, image := foreign(s)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
	})
	images := newRegistry(s)
	pushed := errors.Join(images.Push(t.Context(), "kip:index", index), images.Push(t.Context(), "kip:image", image))
	if pushed != nil {
		t.Fatal(pushed)
	}
	pullsFrom(s, ordinary(s, "node-2"), images.Address())
	install := func(tag, timeout string) (out string) {
		values := secondValues(t, func(v map[string]any) {
			v["persistence"] = map[string]any{"enabled": false}
			v["image"] = map[string]any{"repository": images.Address() + "/kip", "tag": tag}
		})
		folder, _ := chart(t)
		out, err := helm(t, "upgrade", secondRelease, folder, "--install", "--values", values, "--timeout", timeout)
		if err == nil {
			t.Errorf("a Kip for %s is installed:\n%s", arch, out)
		}
		return out
	}

	t.Run("by an index", func(t *testing.T) {
		s := s.For(t)
		defer removeSecond(s)
		// Helm deletes the Job, at which the node may not have looked yet. Why it failed stays in the Events.
		s.Eventually("an Event of the hook's pod says why", func(ctx context.Context) error {
			install("index", "30s")
			all, err := world.Admin.CoreV1().Events(kipNamespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Failed"})
			if err != nil {
				return err
			}
			for _, e := range all.Items {
				if strings.HasPrefix(e.InvolvedObject.Name, secondHook+"-") && strings.Contains(e.Message, "no match for platform") {
					return nil
				}
			}
			return fmt.Errorf("there are %d Events of what failed, and none says so", len(all.Items))
		})
	})
	t.Run("by itself", func(t *testing.T) {
		s := s.For(t)
		defer removeSecond(s)
		if _, err := os.Stat("/proc/sys/fs/binfmt_misc/qemu-aarch64"); err == nil {
			t.Skip("this host emulates other architectures (binfmt_misc)")
		}
		// Helm shows the log of a hook that has failed.
		if out := install("image", "5m"); !strings.Contains(out, "exec format error") {
			t.Errorf("Helm prints\n%s", out)
		}
	})
}

// newRegistry starts a registry for images of a test's own, which ends with the test.
func newRegistry(s *namespace.Space) *registry.Registry {
	s.Helper()
	l, err := listen.On(s.Context(), ownNetwork.Host(), 0)
	if err != nil {
		s.Fatal(err)
	}
	images, err := registry.Start(l, s.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := images.Stop(); err != nil {
			s.Error(err)
		}
	})
	return images
}

// foreign is an image with the programs of Kip for an architecture that this host is not.
func foreign(s *namespace.Space) (arch string, image v1.Image) {
	s.Helper()
	arch, machine := "arm64", elf.EM_AARCH64
	if runtime.GOARCH == arch {
		arch, machine = "amd64", elf.EM_X86_64
	}
	var program, archive bytes.Buffer
	header := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT)}
	header.Ehsize = uint16(binary.Size(header))
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	err := binary.Write(&program, binary.LittleEndian, header)
	w := tar.NewWriter(&archive)
	for _, name := range []string{"kip", "kipctl"} {
		file := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(program.Len())}
		err = errors.Join(err, w.WriteHeader(file))
		_, writeErr := w.Write(program.Bytes())
		err = errors.Join(err, writeErr)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		s.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	if err != nil {
		s.Fatal(err)
	}
	if image, err = mutate.AppendLayers(empty.Image, layer); err != nil {
		s.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		s.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Config.Entrypoint = []string{"/kip"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		s.Fatal(err)
	}
	return arch, image
}

// ordinary is the machine of an ordinary node.
func ordinary(s *namespace.Space, node string) namespace.Machine {
	s.Helper()
	records, err := filepath.Glob(filepath.Join(world.State, "nodes", "machines", "*", "record.json"))
	if err != nil {
		s.Fatal(err)
	}
	for _, path := range records {
		text, err := os.ReadFile(path)
		if err != nil {
			s.Fatal(err)
		}
		var record struct {
			Instance struct{ Tags map[string]string }
			Process  struct{ PID int }
		}
		if err := json.Unmarshal(text, &record); err != nil {
			s.Fatalf("read %s: %v", path, err)
		}
		if record.Instance.Tags[cloud.TagName] == node {
			return namespace.Machine{PID: record.Process.PID}
		}
	}
	s.Fatalf("node %s has no machine in %v", node, records)
	return namespace.Machine{}
}

// pullsFrom lets a node's machine pull from a registry, by HTTP.
func pullsFrom(s *namespace.Space, node namespace.Machine, address string) {
	s.Helper()
	files, err := configs.RegistryHosts(map[string][]string{address: {"http://" + address}}, nil)
	if err != nil {
		s.Fatal(err)
	}
	folder := node.Path(filepath.Join(configs.RegistryDir, address))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			s.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(folder, "hosts.toml"), []byte(files[address]), 0o644); err != nil {
		s.Fatal(err)
	}
}

// cut drops what a node's machine forwards to a port, until restore is called or the test ends. also narrows that, in the words of nft.
func cut(s *namespace.Space, node namespace.Machine, port int, also string) (restore func()) {
	s.Helper()
	nft := func(program string) error {
		return node.Inside(func() error {
			cmd := exec.Command("nft", "-f", "-")
			cmd.Stdin = strings.NewReader(program)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	if err := nft(fmt.Sprintf(`table inet cut {
	chain forward {
		type filter hook forward priority filter
		tcp dport %d %s drop
	}
}
`, port, also)); err != nil {
		s.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := nft("delete table inet cut\n"); err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(restore)
	return restore
}

func TestCellsThatKipDoesNotReachAreNamed(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	restore := cut(s, ordinary(s, kip(s, nil).Spec.NodeName), agentapi.Port, "")
	s.Apply(namespace.Sleeper("waits"))
	says := func(what string, args ...string) {
		t.Helper()
		s.Eventually(what+" names the cell's agent, and the time-out", func(ctx context.Context) error {
			out, code, errs := s.Attempt(ctx, args...)
			if code != 0 || !strings.Contains(out, "its agent has not joined: ") || !strings.Contains(out, "i/o timeout") {
				return fmt.Errorf("exit %d: %s%s", code, out, errs)
			}
			return nil
		})
	}
	says("kubectl get cells", "get", "cells")
	says("kipctl why", "exec", "-n", kipNamespace, kipPod, "--", "/kipctl", "why", s.NS+"/waits")
	restore()
	s.WaitReady("waits")
	log(s)
}

func TestPodsThatTheWebhookDoesNotSeeAreNamed(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	const taint = "virtual-kubelet.io/provider"
	// As docs/install.md says.
	tolerates := func(ctx context.Context) (bool, error) {
		out, code, errs := s.Attempt(ctx, "run", "probe", "--image=busybox:1.36", "--dry-run=server", "-o", "yaml",
			`--overrides={"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}`)
		if code != 0 {
			return false, fmt.Errorf("kubectl run ended with %d: %s", code, errs)
		}
		return strings.Contains(out, taint), nil
	}
	becomes := func(what string, want bool) {
		t.Helper()
		s.Eventually(what, func(ctx context.Context) error {
			is, err := tolerates(ctx)
			if err == nil && is != want {
				err = fmt.Errorf("a pod has the toleration: %t", is)
			}
			return err
		})
	}
	becomes("a pod gets the toleration", true)
	restore := cut(s, ordinary(s, kip(s, nil).Spec.NodeName), webhookPort, "")
	becomes("a pod gets no toleration without the webhook", false)
	s.Apply(namespace.Sleeper("waits"))
	s.WaitEvent("waits", "FailedScheduling", "untolerated taint")
	s.WaitEvent("waits", "TolerationMissing", "kubectl delete pod waits -n "+s.NS)
	restore()
	becomes("a pod gets the toleration again", true)
	s.Kubectl("delete", "pod", "waits")
	s.Apply(namespace.Sleeper("runs"))
	s.WaitReady("runs")
	log(s)
}

// webhookPort is the chart's default of webhook.port.
const webhookPort = 9443
