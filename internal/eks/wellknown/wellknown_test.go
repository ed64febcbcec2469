package wellknown

import (
	"strings"
	"testing"
)

func TestARNsAreOfTheRegionsPartition(t *testing.T) {
	for region, partition := range map[string]string{"us-west-2": "aws", "cn-north-1": "aws-cn", "us-gov-west-1": "aws-us-gov"} {
		command := CreateEBSDriver(region, "prod", "123456789012")
		for _, want := range []string{
			"arn:" + partition + ":iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy",
			"--service-account-role-arn arn:" + partition + ":iam::123456789012:role/prod-ebs-driver",
		} {
			if !strings.Contains(command, want) {
				t.Errorf("in %s the command lacks %s:\n%s", region, want, command)
			}
		}
		if got, want := Provider(region, "1", "example.org/a"), "arn:"+partition+":iam::1:oidc-provider/example.org/a"; got != want {
			t.Errorf("in %s the provider is %s, want %s", region, got, want)
		}
	}
}
