package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asProgram has this test binary be kipctl.
const asProgram = "KIPCTL_TEST_AS_PROGRAM"

// deployScript runs ./kustomize/deploy.sh with an environment, and returns what it says.
func deployScript(t *testing.T, args []string, env ...string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "kipctl")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+asProgram+"=1 exec '"+self+"' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("./kustomize/deploy.sh", args...)
	cmd.Dir = "../.." // as the documents say
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "KIPCTL=" + program, "HOME=" + t.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestDeployScriptNamesEachMissingVariable(t *testing.T) {
	all := map[string]string{
		"CLUSTER_NAME": "kip", "USE_REGION": "us-west-2", "IMAGE_TAG": "1.0-latest",
		"KIP_SERVICE_ACCOUNT_ROLE_ARN": "arn:aws:iam::012345678910:role/kip-enterprise",
	}
	for missing := range all {
		var env []string
		for name, value := range all {
			if name != missing {
				env = append(env, name+"="+value)
			}
		}
		said, err := deployScript(t, nil, env...)
		if err == nil || !strings.Contains(said, missing+" is not set: want the ") || strings.Count(said, "is not set") != 1 ||
			!strings.Contains(said, "nothing was changed") {
			t.Errorf("without %s: %v\n%s", missing, err, said)
		}
	}
	if said, err := deployScript(t, nil); err == nil || strings.Count(said, "is not set") != len(all) {
		t.Errorf("without any: %v\n%s", err, said)
	}
	// A flag stands for its variable, and the image cache is refused.
	said, err := deployScript(t, []string{"--cluster-name=kip", "--region=nowhere", "--image-tag=1",
		"--role-arn=arn:aws:iam::012345678910:role/kip"},
		"NFS_VOLUME_ENDPOINT=fs-92e61897.efs.us-west-2.amazonaws.com:/", "NAMESPACE=elotl-kip", "KIP_CELL_SG=kip-cells")
	if err == nil || strings.Contains(said, "is not set") || !strings.Contains(said, "not in this release") || !strings.Contains(said,
		`USE_REGION is "nowhere"`) ||
		!strings.Contains(said, `KIP_CELL_SG is "kip-cells"`) {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestDeployScriptSaysWhereKipctlIsFrom(t *testing.T) {
	cmd := exec.Command("./kustomize/deploy.sh")
	cmd.Dir, cmd.Env = "../..", []string{"PATH=/usr/bin:/bin", "KIPCTL=/none"}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "make bin/kipctl") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestThePolicyIsPrintedAndCompared(t *testing.T) {
	r := run(t, nil, "eks", "policy")
	if r.failed != nil || !strings.Contains(r.out, `"KipLaunches"`) || strings.Contains(r.out, "iam:PassRole") {
		t.Errorf("%v: %s", r.failed, r.out)
	}
	file := filepath.Join(t.TempDir(), "kip.json")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(r.out, "ec2:DescribeImages", "ec2:DescribeAddresses")), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, nil, "eks", "policy", "-f", file); r.failed == nil || !strings.Contains(r.failed.Error(), "KipReads: ec2:DescribeImages") {
		t.Error(r.failed)
	}
}
