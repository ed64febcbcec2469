//go:build e2e

package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/internal/bootimages"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// imagesAt serves a registry that pods reach, with a boot image of the tag v1, and AWS beside it. It returns the address of both, and the
// name of the boot images without a tag. What the image's disk has is of no matter: nothing boots it.
func imagesAt(t *testing.T) (address, name string) {
	t.Helper()
	l, err := net.Listen("tcp4", net.JoinHostPort(ownNetwork.Host().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	aws, err := url.Parse(world.Ready["ec2"])
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/v2/", registry.New(registry.Logger(stdlog.New(io.Discard, "", 0))))
	mux.Handle("/", httputil.NewSingleHostReverseProxy(aws))
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })

	folder, disk := t.TempDir(), bytes.Repeat([]byte{1}, 3<<19)
	sum := sha256.Sum256(disk)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	archive := tar.NewWriter(z)
	err = archive.WriteHeader(&tar.Header{Name: "disk.raw", Mode: 0o644, Size: int64(len(disk)), Format: tar.FormatGNU})
	if err == nil {
		_, err = archive.Write(disk)
	}
	if err := errors.Join(err, archive.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Sprintf(`{"version": "v1", "arch": "amd64", "outputs": [{"name": "kip-cell-amd64.raw", "sha256": %q}]}`, hex.EncodeToString(sum[:]))
	for file, content := range map[string][]byte{bootimages.ManifestFile("amd64"): []byte(manifest),
		bootimages.DiskFile("amd64"): packed.Bytes()} {
		if err := os.WriteFile(filepath.Join(folder, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := bootimages.Pack(folder, []string{"amd64"})
	if err != nil {
		t.Fatal(err)
	}
	at := bootimages.Name(l.Addr().String()+"/team", "v1")
	ref, err := imagename.ParseReference(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return "http://" + l.Addr().String(), strings.TrimSuffix(at, ":v1")
}

// The chart publishes the boot image before it upgrades Kip, by a Job that is no part of Kip. Where the registry has none, nothing is
// upgraded, and Helm says why.
func TestTheChartPublishesTheBootImage(t *testing.T) {
	tier.All(t)
	s := namespace.New(t, world)
	installed(s)
	first := kip(s, nil)
	folder, _ := chart(t)
	address, name := imagesAt(t)
	keys := map[string]string{"AWS_ACCESS_KEY_ID": machines.AdministratorKeyID, "AWS_SECRET_ACCESS_KEY": "any"}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "publisher"}, StringData: keys}
	if _, err := world.Admin.CoreV1().Secrets(kipNamespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := world.Admin.CoreV1().Secrets(kipNamespace).Delete(ctx, secret.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete the publisher's secret: %v", err)
		}
	})
	upgrade := func(tag string) (string, error) {
		values := withValues(t, func(v map[string]any) {
			v["bootImage"] = map[string]any{"publish": true, "repository": name, "tag": tag, "existingSecret": "publisher",
				"extraEnv": []any{map[string]any{"name": "AWS_ENDPOINT_URL", "value": address}}}
			v["podAnnotations"] = map[string]any{"step": tag}
		})
		return helm(t, "upgrade", release, folder, "--values", values, "--wait", "--timeout", "5m")
	}
	publish := func() (said string) {
		cmd := exec.CommandContext(t.Context(), world.Tool("kipctl"), "image", "publish", "--region", machines.Region, "--from", name+":v1")
		cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+world.Ready["ec2"], "AWS_EC2_METADATA_DISABLED=true")
		for key, value := range keys {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		out, errs, err := namespace.Run(cmd)
		if err != nil {
			t.Fatalf("%v: %s%s", err, out, errs)
		}
		return errs
	}

	if out, err := upgrade("v2"); err == nil || !strings.Contains(out, "find the boot image "+name+":v2 for amd64") {
		t.Errorf("without an image: %v\n%s", err, out)
	}
	if now := kip(s, nil); now.UID != first.UID {
		t.Error("Kip is upgraded, and its boot image is not there")
	}
	if out, err := upgrade("v1"); err != nil {
		t.Fatalf("upgrade: %v\n%s", err, out)
	}
	if now := kip(s, first); now.Annotations["step"] != "v1" {
		t.Errorf("Kip's pod has the annotations %v", now.Annotations)
	}
	if said := publish(); !strings.Contains(said, " already") {
		t.Errorf("the Job has not published the image: %s", said)
	}
	if out, err := upgrade("v1"); err != nil {
		t.Errorf("upgrade again: %v\n%s", err, out)
	}
	for _, left := range []string{"job/kip-boot-image", "serviceaccount/kip-boot-image"} {
		if out := s.Kubectl("get", left, "-n", kipNamespace, "--ignore-not-found"); out != "" {
			t.Errorf("left: %s", out)
		}
	}
	log(s)
}
