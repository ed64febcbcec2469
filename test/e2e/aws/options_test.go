//go:build e2e

package aws

import (
	"encoding/xml"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elotl/kip/dev/ec2/machines"
	"github.com/elotl/kip/test/namespace"
	"github.com/elotl/kip/test/tier"
)

// What provider.yaml says of all cells, and annotations of one, is what the instance is launched with.
func TestAnInstanceHasTheGroupsTheRoleAndThePublicAddressOfItsPod(t *testing.T) {
	tier.All(t)
	s := newSpace(t)
	before := s.state(t.Context())
	var subnets struct {
		VPCs []string `xml:"subnetSet>item>vpcId"`
	}
	answer, code := s.account(t.Context(), "DescribeSubnets")
	if err := xml.Unmarshal(answer, &subnets); code != "" || err != nil || len(subnets.VPCs) == 0 {
		t.Fatalf("%s %v: %s", code, err, answer)
	}
	made := map[string]string{}
	for _, name := range []string{"of-all-cells", "of-one-pod"} {
		answer, code := s.account(t.Context(), "CreateSecurityGroup", "GroupName="+name, "GroupDescription=of e2e", "VpcId="+subnets.VPCs[0])
		var group struct {
			ID string `xml:"groupId"`
		}
		if err := xml.Unmarshal(answer, &group); code != "" || err != nil {
			t.Fatalf("%s %v: %s", code, err, answer)
		}
		made[name] = group.ID
	}
	restore := namespace.Reconfigure(t, world, func(provider map[string]any) {
		cells := provider["cells"].(map[string]any)
		cells["extraSecurityGroups"], cells["defaultIAMPermissions"] = []string{"of-all-cells"}, "of-all-cells"
		provider["cloud"].(map[string]any)["aws"].(map[string]any)["subnetID"] = machines.Subnets[1].ID // a public one
	})
	s.Kubectl("annotate", "namespace", s.NS, "allow.kip.elotl.co/instance-profile=of-one-pod",
		"allow.kip.elotl.co/security-groups="+made["of-one-pod"], "allow.kip.elotl.co/allow-metadata=true")
	for _, one := range []struct {
		name, annotations, profile string
		groups                     []string
		public                     bool
	}{
		{"plain", "{}", "", []string{"of-all-cells"}, true},
		{"reads", `{pod.elotl.co/allow-metadata: "true"}`, "of-all-cells", []string{"of-all-cells"}, true},
		{
			"own",
			`{pod.elotl.co/instance-profile: of-one-pod, pod.elotl.co/allow-metadata: "true", ` +
				`pod.elotl.co/private-ip-only: "true", pod.elotl.co/security-groups: ` + made["of-one-pod"] + `}`,
			"of-one-pod", []string{"of-all-cells", "of-one-pod"}, false,
		},
	} {
		s.Apply(pod(one.name, one.annotations))
		is := s.described(s.WaitReady(one.name))
		var groups []string
		for _, g := range is.Groups {
			if _, ours := made[g]; ours {
				groups = append(groups, g)
			}
		}
		slices.Sort(groups)
		if profile := path.Base("/" + is.Profile); profile != path.Base("/"+one.profile) || !slices.Equal(groups, one.groups) {
			t.Errorf("the instance of pod %s has the profile %q and the groups %q: want %+v", one.name, is.Profile, is.Groups, one)
		}
		if public := is.Public != ""; public != one.public {
			t.Errorf("the instance of pod %s has the public address %q: want one is %t", one.name, is.Public, one.public)
		}
		if one.profile != "" {
			s.hasRole(one.name, one.profile)
		}
		s.Kubectl("delete", "pod", one.name, "--wait=false")
		s.waitOver(one.name, before)
	}
	restore()
	for name, id := range made {
		if _, code := s.account(t.Context(), "DeleteSecurityGroup", "GroupId="+id); code != "" {
			t.Errorf("delete group %s: %s", name, code)
		}
	}
}

// hasRole checks that a pod gets the credentials of its instance's role, as the SDKs do.
func (s *space) hasRole(pod, role string) {
	s.Helper()
	_, given, _ := strings.Cut(s.says(s.Context(), pod, "PUT /latest/api/token HTTP/1.1", lifetime), "\r\n\r\n")
	const roles = "/latest/meta-data/iam/security-credentials/"
	for path, want := range map[string]string{roles: role, roles + role: `"AccessKeyId": "ASIA`} {
		if out := s.says(s.Context(), pod, "GET "+path+" HTTP/1.1", token+strings.TrimSpace(given)); !strings.Contains(out, want) {
			s.Errorf("pod %s asks for %s, and is told %q; want %s", pod, path, out, want)
		}
	}
}

// described is what EC2 says of the instance of a pod.
type described struct {
	Profile string   `xml:"reservationSet>item>instancesSet>item>iamInstanceProfile>arn"`
	Groups  []string `xml:"reservationSet>item>instancesSet>item>groupSet>item>groupName"`
	// Prefix is its interface's, Public its public address; each is "" where there is none.
	Prefix    string   `xml:"reservationSet>item>instancesSet>item>networkInterfaceSet>item>ipv4PrefixSet>item>ipv4Prefix"`
	Addresses []string `xml:"reservationSet>item>instancesSet>item>networkInterfaceSet>item>privateIpAddressesSet>item>privateIpAddress"`
	Public    string   `xml:"reservationSet>item>instancesSet>item>ipAddress"`
}

func (s *space) described(p *corev1.Pod) (is described) {
	s.Helper()
	answer, code := s.account(s.Context(), "DescribeInstances", "InstanceId.1="+s.of(p).ID)
	if err := xml.Unmarshal(answer, &is); err != nil || code != "" {
		s.Fatal(fmt.Sprint(code, err, string(answer)))
	}
	return is
}
