package aws

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/elotl/kip/dev/ec2"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

func TestAnImageIsFoundByWhatItIsCalledBy(t *testing.T) {
	for _, tc := range []struct {
		spec map[string]string
		want string // owners, users and filters
	}{
		{map[string]string{imageID: "ami-1"}, "[] [] image-id=[ami-1]"},
		{map[string]string{imageName: "kip-*"}, "[self] [] state=[available] name=[kip-*] architecture=[arm64]"},
		{map[string]string{imageName: "kip-*", imageOwner: "amazon"}, "[amazon] [] state=[available] name=[kip-*] architecture=[arm64]"},
		{map[string]string{imageIDs: "ami-1, ami-2"}, "[] [] state=[available] image-id=[ami-1 ami-2] architecture=[arm64]"},
		{map[string]string{imageFilters: "name=a*,b tag:key=val", imageOwners: "111111111111 self"},
			"[111111111111 self] [] name=[a* b] tag:key=[val] state=[available] architecture=[arm64]"},
		{map[string]string{imageFilters: "architecture=x86_64", imageUsers: "self", imageOwner: "111111111111"},
			"[111111111111] [self] architecture=[x86_64] state=[available]"},
	} {
		in, err := findImages(tc.spec, "arm64")
		if err != nil {
			t.Errorf("%v: %v", tc.spec, err)
			continue
		}
		got := fmt.Sprint(in.Owners, " ", in.ExecutableUsers)
		for _, f := range in.Filters {
			got += fmt.Sprintf(" %s=%v", aws.ToString(f.Name), f.Values)
		}
		if got != tc.want {
			t.Errorf("%v: %s, want %s", tc.spec, got, tc.want)
		}
	}
	for want, spec := range map[string]map[string]string{
		`"imageid" is no key of an image`:              {"imageid": "ami-1"},
		`nothing says which image`:                     {},
		`nothing says which image: want`:               {imageOwners: "1"},
		`imageID is "ami-1", and there are other`:      {imageID: "ami-1", imageName: "a"},
		`name is " ": want a value`:                    {imageName: " "},
		`owner is "1" and owners "2"`:                  {imageName: "a", imageOwner: "1", imageOwners: "2"},
		`filters has "name": want NAME=VALUE`:          {imageFilters: "name"},
		`filters has "=a": want NAME=VALUE`:            {imageFilters: "tag:key=a =a"},
		`filters has "tags:team", by which EC2 find`:   {imageFilters: "tags:team=x"},
		`filters has "tag:", by which`:                 {imageFilters: "tag:=x"},
		`owner and owners have "1": want an account`:   {imageName: "a", imageOwners: "self 1"},
		`executableUsers has "me": want an account's`:  {imageName: "a", imageOwner: "self", imageUsers: "me"},
		`executableUsers is "self", and there is no o`: {imageName: "a", imageUsers: "self"},
		`filters has "name=,": want`:                   {imageFilters: "name=,"},
		`name is "a", and filters have one, too: w`:    {imageName: "a", imageFilters: "name=b"},
	} {
		if err := CheckImage(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", spec, err, want)
		}
	}
}

func TestTheNewestImageThatFiltersLeaveIsBooted(t *testing.T) {
	account := anAccount(sim.Knobs{})
	for n, team := range []string{"a", "b", "a"} {
		account.Images = append(account.Images, ec2.Image{
			ID:         fmt.Sprint("ami-of-", n),
			Name:       fmt.Sprint("team-", n),
			Owner:      "self",
			Created:    fmt.Sprintf("2026-10-%02dT00:00:00.000Z", 10-n),
			RootDevice: "/dev/xvda",
			GiB:        4,
			Tags:       map[string]string{"team": team},
		})
	}
	_, url := serve(t, account)
	c := open(t, settings(url))
	for want, spec := range map[string]map[string]string{
		"ami-of-0": {imageFilters: "tag:team=a"},
		"ami-of-1": {imageIDs: "ami-of-1 ami-of-2"},
		"ami-of-2": {imageFilters: "name=team-2", imageOwner: "self", imageUsers: "self"},
		"":         {imageFilters: "tag:team=c"},
	} {
		s := request("t", 1).LaunchSpec
		s.Image, s.Arch = spec, "amd64"
		if got, err := c.Resolve(t.Context(), s); got.Image != want || (err == nil) != (want != "") {
			t.Errorf("%v: %s (%v), want %s", spec, got.Image, err, cloud.Resolved{Image: want}.Image)
		}
	}
}

// A vendor deprecates an image, and launches of it go on to work.
func TestAnImageOfAnotherAccountStaysWhenItIsDeprecated(t *testing.T) {
	const vendor = "210987654321"
	account := anAccount(sim.Knobs{})
	image := func(id, name, created, deprecated string) ec2.Image {
		return ec2.Image{ID: id, Name: name, Owner: vendor, Created: created, RootDevice: "/dev/xvda", GiB: 4, Deprecated: deprecated}
	}
	const past, future = "2026-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z"
	account.Images = append(account.Images,
		image("ami-old", "vendor-1", "2024-01-01T00:00:00.000Z", past),
		image("ami-older", "vendor-0", "2023-01-01T00:00:00.000Z", past),
		image("ami-new", "vendor-2", "2025-01-01T00:00:00.000Z", future),
		image("ami-bad", "vendor-3", "2025-02-01T00:00:00.000Z", past),
	)
	model, url := serve(t, account)
	var log bytes.Buffer
	s := settings(url)
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	c := open(t, s)
	for what, tc := range map[string]struct {
		spec map[string]string
		want string
	}{
		"by its ID":            {map[string]string{imageID: "ami-old"}, "ami-old"},
		"by its ID among some": {map[string]string{imageIDs: "ami-old, ami-older"}, "ami-old"},
		"by its name":          {map[string]string{imageName: "vendor-1", imageOwner: vendor}, "ami-old"},
		"the newest but those": {map[string]string{imageName: "vendor-*", imageOwner: vendor}, "ami-new"},
	} {
		log.Reset()
		r := request("t-"+tc.want, 1)
		r.Image, r.Arch = tc.spec, "amd64"
		got, err := c.Resolve(t.Context(), r.LaunchSpec)
		if err != nil || got.Image != tc.want {
			t.Errorf("%s: %s, %v, want %s", what, got.Image, err, tc.want)
			continue
		}
		if told := strings.Contains(log.String(), "image="+tc.want); told != (tc.want == "ami-old") {
			t.Errorf("%s: the log has %q", what, &log)
		}
		if err := runLaunch(t.Context(), c, r).Err(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := len(model.Machines().Truth()); n != 2 {
		t.Errorf("%d run, want one of each image", n)
	}
	_, err := c.Resolve(t.Context(), cloud.LaunchSpec{
		Zone: "us-east-1a", Subnet: "subnet-a1", Tags: request("t", 1).Tags,
		Options: cloud.Options{Image: map[string]string{imageID: "ami-none"}},
	})
	if err == nil || !strings.Contains(err.Error(), "EC2 shows none") {
		t.Errorf("one that is not there: %v", err)
	}
}
