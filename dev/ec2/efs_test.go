package ec2

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/elotl/kip/internal/cloud/sim"
)

// A file system is made, gets a mount target in each zone, and goes when these have gone, as EFS has it.
func TestAFileSystemHasOneMountTargetInAZone(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))
	m, err := New(Config{
		Sim: sim.Config{Catalogue: aCatalogue(), Clock: clock},
		Subnets: []Subnet{
			{ID: "subnet-1", VPC: "vpc-1", Zone: "z1"}, {ID: "subnet-2", VPC: "vpc-1", Zone: "z2"}, {ID: "subnet-3", VPC: "vpc-1", Zone: "z1"},
			{ID: "subnet-4", VPC: "vpc-2", Zone: "z3"},
		},
		Groups:         []Group{{ID: "sg-1", Name: "efs", VPC: "vpc-1"}},
		FileSystemStep: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	call := func(method, path, body string) (int, string, map[string]any) {
		t.Helper()
		answer := httptest.NewRecorder()
		m.ServeHTTP(answer, httptest.NewRequest(method, efsPath+path, strings.NewReader(body)))
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		said := map[string]any{}
		if len(text) > 0 {
			if err := json.Unmarshal(text, &said); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		return answer.Code, answer.Header().Get("X-Amzn-Errortype"), said
	}
	const fs = `{"CreationToken": "a", "Tags": [{"Key": "Name", "Value": "kip-efs"}]}`
	status, _, made := call(http.MethodPost, "/file-systems", fs)
	id, _ := made["FileSystemId"].(string)
	if status != http.StatusCreated || id == "" || made["LifeCycleState"] != "creating" || made["Name"] != "kip-efs" ||
		made["Encrypted"] != false {
		t.Fatalf("%d %v", status, made)
	}
	target := func(subnet string) string {
		return `{"FileSystemId": "` + id + `", "SubnetId": "` + subnet + `", "SecurityGroups": ["sg-1"]}`
	}
	wants := func(what, method, path, body string, status int, code string) map[string]any {
		t.Helper()
		got, said, answer := call(method, path, body)
		if got != status || said != code {
			t.Errorf("%s: %d %s %v, want %d %s", what, got, said, answer, status, code)
		}
		return answer
	}
	wants("the token again", http.MethodPost, "/file-systems", fs, http.StatusConflict, "FileSystemAlreadyExists")
	wants("no token", http.MethodPost, "/file-systems", `{}`, http.StatusBadRequest, "BadRequest")
	wants("a parameter that is none", http.MethodPost, "/file-systems", `{"Token": "b"}`, http.StatusBadRequest, "BadRequest")
	wants("too early", http.MethodPost, "/mount-targets", target("subnet-1"), http.StatusConflict, "IncorrectFileSystemLifeCycleState")
	clock.Step(time.Second)
	first := wants("a target", http.MethodPost, "/mount-targets", target("subnet-1"), http.StatusOK, "")
	second := wants("one in another zone", http.MethodPost, "/mount-targets", target("subnet-2"), http.StatusOK, "")
	wants("one in that zone", http.MethodPost, "/mount-targets", target("subnet-3"), http.StatusConflict, "MountTargetConflict")
	wants("another VPC's group", http.MethodPost, "/mount-targets", target("subnet-4"), http.StatusBadRequest, "SecurityGroupNotFound")
	wants("another VPC", http.MethodPost, "/mount-targets", strings.Replace(target("subnet-4"), `"sg-1"`, "", 1), http.StatusConflict,
		"MountTargetConflict")
	wants("no such subnet", http.MethodPost, "/mount-targets", target("subnet-9"), http.StatusBadRequest, "SubnetNotFound")
	wants("no such file system", http.MethodPost, "/mount-targets", strings.Replace(target("subnet-1"), id, "fs-9", 1), http.StatusNotFound,
		"FileSystemNotFound")
	clock.Step(time.Second)
	_, _, shown := call(http.MethodGet, "/mount-targets?FileSystemId="+id, "")
	all, _ := shown["MountTargets"].([]any)
	if len(all) != 2 || all[0].(map[string]any)["IpAddress"] == all[1].(map[string]any)["IpAddress"] ||
		all[0].(map[string]any)["LifeCycleState"] != "available" {
		t.Errorf("the mount targets are %v", shown)
	}
	_, _, groups := call(http.MethodGet, "/mount-targets/"+first["MountTargetId"].(string)+"/security-groups", "")
	if all, _ := groups["SecurityGroups"].([]any); len(all) != 1 || all[0] != "sg-1" {
		t.Errorf("the groups are %v", groups)
	}
	_, _, shown = call(http.MethodGet, "/file-systems?FileSystemId="+id, "")
	if all, _ := shown["FileSystems"].([]any); len(all) != 1 || all[0].(map[string]any)["NumberOfMountTargets"] != 2.0 {
		t.Errorf("the file systems are %v", shown)
	}
	wants("one in use", http.MethodDelete, "/file-systems/"+id, "", http.StatusConflict, "FileSystemInUse")
	for _, one := range []map[string]any{first, second} {
		wants("a target goes", http.MethodDelete, "/mount-targets/"+one["MountTargetId"].(string), "", http.StatusNoContent, "")
	}
	wants("it goes", http.MethodDelete, "/file-systems/"+id, "", http.StatusNoContent, "")
	wants("another call", http.MethodPut, "/file-systems/"+id, "", http.StatusNotFound, "UnknownOperationException")
	if len(m.FileSystems.All())+len(m.MountTargets.All()) > 0 {
		t.Errorf("left: %v, %v", m.FileSystems.All(), m.MountTargets.All())
	}
}
