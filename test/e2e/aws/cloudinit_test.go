//go:build e2e

package aws

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloudconfig"
	"github.com/elotl/kip/internal/events"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// mostUserData is EC2's, in bytes.
const mostUserData = 16 << 10

// largeCloudInit is a file of two parts, compressed, larger than user data may be: it writes what
// each of the contents is, in another encoding.
func largeCloudInit(t *testing.T, contents [4][]byte) []byte {
	t.Helper()
	b64 := base64.StdEncoding.EncodeToString
	config := "#cloud-config\nwrite_files:\n" +
		"- {path: /srv/0, content: \"" + string(contents[0]) + "\"}\n" +
		"- {path: /srv/1, encoding: b64, content: " + b64(contents[1]) + "}\n" +
		"- {path: /srv/2, encoding: gzip, content: !!binary " + b64(squeezed(t, contents[2])) + "}\n" +
		"- {path: /srv/3, encoding: gz+b64, content: " + b64(squeezed(t, contents[3])) + ", permissions: '0600'}\n" +
		"runcmd: [cat /srv/0 /srv/1 /srv/2 /srv/3 > /srv/all]\n"
	file := squeezed(t, []byte("Content-Type: multipart/mixed; boundary=\"==b==\"\nMIME-Version: 1.0\n\n"+
		"--==b==\nContent-Type: text/cloud-config\n\n"+config+
		"\n--==b==\nContent-Type: text/x-shellscript\n\n#!/bin/sh\necho a script >/srv/script\n\n--==b==--\n"))
	if len(file) <= mostUserData || len(file) > cloudconfig.MaxBytes {
		t.Fatalf("the file has %d bytes: want more than user data takes, %d, and no more than %d", len(file), mostUserData, cloudconfig.MaxBytes)
	}
	return file
}

func squeezed(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestALargeCloudInitFileReachesACellWhoseUserDataOthersPutTogether(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	contents := [4][]byte{[]byte("plain")}
	for n := 1; n < len(contents); n++ {
		contents[n] = make([]byte, 6<<10)
		rand.Read(contents[n])
	}
	file := filepath.Join(t.TempDir(), "cloud-init")
	if err := os.WriteFile(file, largeCloudInit(t, contents), 0o600); err != nil {
		t.Fatal(err)
	}
	defer namespace.Reconfigure(t, world, func(provider map[string]any) { provider["cells"].(map[string]any)["cloudInitFile"] = file })()
	s.order("compose", ec2.Compose{On: true})
	defer s.order("compose", ec2.Compose{})
	before := s.state(t.Context())
	s.Apply(pod("a", "{}"))
	s.WaitReady("a")
	m := s.machine("a")
	said := func(name string) string {
		text, err := os.ReadFile(m.Path(name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	if got := said("/srv/all"); got != string(bytes.Join(contents[:], nil)) {
		t.Errorf("what it wrote is not what the file has: %d bytes", len(got))
	}
	for n, content := range contents {
		if got := said(fmt.Sprint("/srv/", n)); got != string(content) {
			t.Errorf("file %d has %d bytes, not the %d that it was to have", n, len(got), len(content))
		}
	}
	if got := said("/srv/script"); got != "a script\n" {
		t.Errorf("the script said %q", got)
	}

	if err := os.WriteFile(file, bytes.Repeat([]byte("#"), cloudconfig.MaxBytes+1000), 0o600); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("it has %d bytes: want at most %d", cloudconfig.MaxBytes+1000, cloudconfig.MaxBytes)
	s.Eventually("the virtual node says how large the file is that is too large", func(ctx context.Context) error {
		list, err := world.Admin.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "reason=" + events.CloudInitInvalid,
		})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, want) {
				return nil
			}
		}
		return fmt.Errorf("no Event of %d says %q", len(list.Items), want)
	})
	s.Kubectl("delete", "pod", "a", "--wait=false")
	s.waitOver("a", before)
}
