package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/test/tier"
)

// motoIs is the version of moto of which testdata/moto.txt is.
const motoIs = "5.2."

// moto starts moto's server, and returns where it listens. A test is skipped where there is none.
func moto(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("moto_server")
	if err != nil {
		t.Skip("MOTO HAS NOT BEEN ASKED: there is no moto_server on this machine")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	log, err := os.Create(filepath.Join(t.TempDir(), "moto.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "-H", "127.0.0.1", "-p", port)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // of a group that has ended by itself there is none
		_ = cmd.Wait()                                      // killed
	})
	url := "http://127.0.0.1:" + port
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/moto-api/data.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if server := resp.Header.Get("Server"); server != "" {
				return url
			}
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("moto does not answer: %v\n%s", err, text)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// motoVersion is what the package says of itself.
func motoVersion(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "pip", "show", "moto").Output()
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// What docs/aws.md says of another endpoint is so: which checks moto passes, and how many.
func TestMotoIsAsTheDocumentSays(t *testing.T) {
	tier.All(t)
	account(t) // for its environment
	url := moto(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if v := motoVersion(t); !strings.HasPrefix(v, motoIs) {
		t.Skipf("MOTO HAS NOT BEEN ASKED: it is of version %s, and what is known of it is of %sx", v, motoIs)
	}
	o, err := parse([]string{"-cloud", "aws", "-endpoint", url, "-patience", "2s"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), o, &out); err == nil {
		t.Error("moto has passed all")
	}
	var got []string
	count := 0
	for line := range strings.Lines(out.String()) {
		outcome, rest, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if !slices.Contains([]string{passed, failed, cannot}, outcome) {
			continue
		}
		name, _, _ := strings.Cut(rest, ": ")
		got = append(got, outcome+"  "+name)
		if outcome == passed {
			count++
		}
	}
	want, err := os.ReadFile(filepath.Join("testdata", "moto.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(got, "\n") + "\n"; text != string(want) {
		t.Errorf("moto now:\n%s\nwant testdata/moto.txt:\n%s\nall that was printed:\n%s", text, want, &out)
	}
	doc, err := os.ReadFile("../../docs/aws.md")
	if err != nil {
		t.Fatal(err)
	}
	says := fmt.Sprintf("`moto_server` %s passes %d of %d", strings.TrimSuffix(motoIs, "."), count, len(got))
	if !strings.Contains(string(doc), says) {
		t.Errorf("docs/aws.md does not say %q", says)
	}
}

// The model is EC2 to a program of AWS' own, too, which reads its answers in its own way.
func TestTheModelAnswersAWSOwnCommand(t *testing.T) {
	tier.All(t)
	program, err := exec.LookPath("aws")
	if err != nil {
		t.Skip("AWS' COMMAND HAS NOT ASKED: there is no aws on this machine")
	}
	model := account(t)
	model.Change(func(c *ec2.Config) { c.Hosts = []ec2.Host{{ID: "h-1", Family: "t3", Zone: "us-east-1a", VCPUs: 8}} })
	server := httptest.NewServer(model)
	defer server.Close()
	aws := func(answer any, args ...string) {
		t.Helper()
		args = append([]string{"--endpoint-url", server.URL, "--output", "json"}, args...)
		cmd := exec.CommandContext(t.Context(), program, args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, append(os.Environ(), "AWS_PAGER=", "AWS_DEFAULT_REGION=us-east-1")
		if err := cmd.Run(); err != nil {
			t.Fatalf("aws %s: %v\n%s", strings.Join(args, " "), err, &errs)
		}
		if err := json.Unmarshal(out.Bytes(), answer); err != nil {
			t.Fatalf("aws %s answers %s: %v", strings.Join(args, " "), &out, err)
		}
	}
	type instance struct {
		InstanceId, PrivateIpAddress, SubnetId string
		State                                  struct{ Name string }
		Placement                              struct{ AvailabilityZone, Tenancy, HostId string }
		NetworkInterfaces                      []struct {
			PrivateIpAddresses []struct{ PrivateIpAddress string }
		}
		Tags []struct{ Key, Value string }
	}
	var launched struct{ Instances []instance }
	aws(&launched, "ec2", "run-instances", "--image-id", "ami-1", "--instance-type", "t3.nano", "--count", "1",
		"--placement", "Tenancy=host,HostId=h-1",
		"--network-interfaces", `[{"DeviceIndex":0,"SubnetId":"subnet-1","SecondaryPrivateIpAddressCount":1}]`,
		"--tag-specifications", "ResourceType=instance,Tags=[{Key=a,Value=b}]")
	if len(launched.Instances) != 1 {
		t.Fatalf("launched %+v", launched)
	}
	id := launched.Instances[0].InstanceId
	var list struct {
		Reservations []struct{ Instances []instance }
	}
	aws(&list, "ec2", "describe-instances", "--filters", "Name=tag:a,Values=b")
	if len(list.Reservations) != 1 || len(list.Reservations[0].Instances) != 1 {
		t.Fatalf("there are %+v", list)
	}
	got := list.Reservations[0].Instances[0]
	if got.InstanceId != id || got.State.Name != "running" || got.PrivateIpAddress == "" || got.SubnetId != "subnet-1" ||
		got.Placement.HostId != "h-1" || got.Placement.Tenancy != "host" || len(got.NetworkInterfaces) != 1 ||
		len(got.NetworkInterfaces[0].PrivateIpAddresses) != 2 || len(got.Tags) != 1 || got.Tags[0].Value != "b" {
		t.Errorf("it is shown as %+v", got)
	}
	var hosts struct {
		Hosts []struct {
			HostId            string
			AvailableCapacity struct {
				AvailableInstanceCapacity []struct {
					InstanceType                     string
					AvailableCapacity, TotalCapacity int
				}
			}
		}
	}
	aws(&hosts, "ec2", "describe-hosts")
	room := hosts.Hosts[0].AvailableCapacity.AvailableInstanceCapacity
	if len(room) != 1 || room[0].AvailableCapacity != 3 || room[0].TotalCapacity != 4 {
		t.Errorf("the host has %+v", hosts)
	}
	var ended struct{ TerminatingInstances []struct{ InstanceId string } }
	aws(&ended, "ec2", "terminate-instances", "--instance-ids", id)
	if len(ended.TerminatingInstances) != 1 || ended.TerminatingInstances[0].InstanceId != id {
		t.Errorf("%+v", ended)
	}
}
