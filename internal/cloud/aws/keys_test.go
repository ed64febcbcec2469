package aws

import (
	"errors"
	"slices"
	"strings"
	"testing"

	ec2api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

const keyOfDisks = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"

// withKey is a driver at an account whose default key is its own, whose policy lacks some statements.
func withKey(t *testing.T, change func(*ec2.Config, *Config), without ...string) (*Cloud, *heard) {
	t.Helper()
	doc := policyOf(permissions)
	doc.Statement = slices.DeleteFunc(doc.Statement, func(s statement) bool { return slices.Contains(without, s.Sid) })
	policy, err := ec2.ParsePolicy(doc.text())
	if err != nil {
		t.Fatal(err)
	}
	account, cfg := anAccount(sim.Knobs{}), settings("")
	account.Policies = map[string]*ec2.Policy{"AKIATESTS": policy}
	account.Keys = []string{keyOfDisks}
	change(&account, &cfg)
	model, _ := serve(t, account)
	h, url := eavesdrop(t, model)
	cfg.Endpoint = url
	return open(t, cfg), h
}

func TestTheKeyOfTheFileEncryptsTheDisksOfCellsAndOfClaims(t *testing.T) {
	for _, key := range []string{"", keyOfDisks} {
		c, h := withKey(t, func(_ *ec2.Config, cfg *Config) { cfg.KMSKey = key })
		stored := resolved(t, c, request("t", 2))
		c.cfg.KMSKey = "alias/another" // since the launch was stored
		if err := runLaunch(t.Context(), c, stored).Err(); err != nil {
			t.Fatal(err)
		}
		c.cfg.KMSKey = key
		if _, err := c.CreateDisk(t.Context(), diskRequest("disk")); err != nil {
			t.Error(err)
		}
		launch, volume := h.of("RunInstances")[0]["BlockDeviceMapping.1.Ebs.KmsKeyId"], h.of("CreateVolume")[0]["KmsKeyId"]
		if launch != key || volume != key {
			t.Errorf("with the key %q the root disk has %q, and a claim's %q", key, launch, volume)
		}
		for _, i := range describe(t, c) {
			if i.State != cloud.Running && i.State != cloud.Pending {
				t.Errorf("with the key %q the instance is %s: %v", key, i.State, i.Fault)
			}
		}
	}
}

// describe are the instances of the launch with the token t, in EC2's words.
func describe(t *testing.T, c *Cloud) []cloud.Instance {
	t.Helper()
	all, err := c.describe(t.Context(), &ec2api.DescribeInstancesInput{Filters: []types.Filter{filter("client-token", "t")}})
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all
}

// EC2 answers the launch before it looks at the key.
func TestAnInstanceWhoseKeyCannotBeUsedSaysWhatToDo(t *testing.T) {
	byDefault := func(account *ec2.Config, _ *Config) { account.DefaultKey = keyOfDisks }
	for what, tc := range map[string]struct {
		change  func(*ec2.Config, *Config)
		without []string
	}{
		"no right to grants":  {byDefault, []string{"KipGrantsKeysOfDisks"}},
		"no right to the key": {byDefault, []string{"KipUsesKeysOfDisks"}},
		"a key that is not there": {
			func(_ *ec2.Config, cfg *Config) { cfg.KMSKey = strings.Replace(keyOfDisks, "1234abcd", "00000000", 1) }, nil,
		},
	} {
		for _, fault := range ec2.KeyFaults {
			c, _ := withKey(t, func(account *ec2.Config, cfg *Config) {
				tc.change(account, cfg)
				account.KeyFault = fault
			}, tc.without...)
			if err := c.Launch(t.Context(), resolved(t, c, request("t", 2))).Err(); err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			for _, i := range describe(t, c) {
				const want = "; mostly the KMS key of the root disk, which is that of " +
					"cloud.aws.kmsKeyID, of the image's snapshot, or the account's default: enable it, and let Kip's role use it"
				if i.State != cloud.Gone || !errors.Is(i.Fault, cloud.ErrUnfit) || !strings.Contains(i.Fault.Error(), want) ||
					!strings.Contains(i.Fault.Error(), "KipUsesKeysOfDisks") {
					t.Errorf("%s, %+v: the instance is %s: %v", what, fault, i.State, i.Fault)
				}
			}
		}
		c, _ := withKey(t, tc.change, tc.without...)
		_, err := c.CreateDisk(t.Context(), diskRequest("disk"))
		if failed, is := errors.AsType[*cloud.FailedDiskError](err); !is || !strings.Contains(failed.Error(), "KipUsesKeysOfDisks") {
			t.Errorf("%s: a disk: %v", what, err)
		}
	}
}
