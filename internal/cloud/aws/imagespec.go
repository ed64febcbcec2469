package aws

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Keys of cloud.Options.Image. An image is called by imageID, or is the newest of what all others leave; the
// last four are those of Kip of 2020, with its notation: words between spaces or commas, and filters as
// NAME=VALUE,VALUE with spaces between them.
const (
	imageID         = "imageID"
	imageName       = "name"
	imageOwner      = "owner"
	imageOwners     = "owners"
	imageIDs        = "imageIDs"
	imageUsers      = "executableUsers"
	imageFilters    = "filters"
	imageKeysWanted = "want imageID, or name, imageIDs or filters, perhaps with owner or owners, and executableUsers"
)

// Filters of DescribeImages that Kip sets, too.
const filterName, filterArchitecture = "name", "architecture"

// CheckImage says what is wrong with what an image is called by.
func CheckImage(spec map[string]string) error {
	_, err := findImages(spec, "")
	return err
}

// findImages is the call that finds what an image is called by, for an architecture in Kubernetes' words; "" for any.
// Without IncludeDeprecated a filter hides the images of others that are deprecated, and launches of them work. Sources:
// https://github.com/hashicorp/packer-plugin-amazon/issues/261, EC2 User Guide, "Deprecate an Amazon EC2 AMI".
func findImages(spec map[string]string, arch string) (*ec2.DescribeImagesInput, error) {
	known := []string{imageID, imageName, imageOwner, imageOwners, imageIDs, imageUsers, imageFilters}
	for _, key := range slices.Sorted(maps.Keys(spec)) {
		switch {
		case !slices.Contains(known, key):
			return nil, fmt.Errorf("%q is no key of an image: %s", key, imageKeysWanted)
		case strings.TrimSpace(spec[key]) == "":
			return nil, fmt.Errorf("%s is %q: want a value, or not the key", key, spec[key])
		case key == imageID && len(spec) > 1:
			return nil, fmt.Errorf("%s is %q, and there are other keys: %s", key, spec[key], imageKeysWanted)
		}
	}
	if id := spec[imageID]; id != "" {
		return &ec2.DescribeImagesInput{Filters: []types.Filter{filter("image-id", id)}, IncludeDeprecated: aws.Bool(true)}, nil
	}
	if spec[imageName]+spec[imageIDs]+spec[imageFilters] == "" {
		return nil, errors.New("nothing says which image: " + imageKeysWanted)
	}
	if spec[imageOwner] != "" && spec[imageOwners] != "" {
		return nil, fmt.Errorf("owner is %q and owners %q: want one of them", spec[imageOwner], spec[imageOwners])
	}
	filters, err := readFilters(spec[imageFilters])
	if err != nil {
		return nil, err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(filters, func(f types.Filter) bool { return aws.ToString(f.Name) == name })
	}
	in := &ec2.DescribeImagesInput{
		Owners:          words(spec[imageOwner] + " " + spec[imageOwners]),
		ExecutableUsers: words(spec[imageUsers]),
		Filters:         append(filters, filter("state", "available")),

		IncludeDeprecated: aws.Bool(true),
	}
	for _, one := range in.Owners {
		if !accountID.MatchString(one) && !slices.Contains(ownerAliases, one) {
			return nil, fmt.Errorf("owner and owners have %q: want an account's 12 digits, or one of %s", one, strings.Join(ownerAliases, ", "))
		}
	}
	for _, one := range in.ExecutableUsers {
		if !accountID.MatchString(one) && one != "self" && one != "all" {
			return nil, fmt.Errorf("executableUsers has %q: want an account's 12 digits, self or all", one)
		}
	}
	if name := spec[imageName]; name != "" {
		if has(filterName) {
			return nil, fmt.Errorf("name is %q, and filters have one, too: want one of them", name)
		}
		in.Filters = append(in.Filters, filter(filterName, name))
	}
	if ids := words(spec[imageIDs]); len(ids) > 0 {
		in.Filters = append(in.Filters, filter("image-id", ids...))
	} else if len(in.Owners) == 0 {
		if len(in.ExecutableUsers) > 0 {
			return nil, fmt.Errorf("executableUsers is %q, and there is no owner: want one, since anybody can share an image of any name",
				spec[imageUsers])
		}
		in.Owners = []string{"self"} // anybody can give an image any name
	}
	for a, known := range architectures {
		if known == arch && !has(filterArchitecture) {
			in.Filters = append(in.Filters, filter(filterArchitecture, string(a)))
		}
	}
	return in, nil
}

// deprecated reports whether an image's owner has set a time since when nobody should use it.
func deprecated(i types.Image, now time.Time) bool {
	since, err := time.Parse(time.RFC3339, aws.ToString(i.DeprecationTime))
	return err == nil && !now.Before(since)
}

// What DescribeImages takes (EC2 API reference, "DescribeImages").
var (
	accountID        = regexp.MustCompile(`^[0-9]{12}$`)
	ownerAliases     = []string{"self", "amazon", "aws-backup-vault", "aws-marketplace"}
	imageFilterNames = []string{
		"architecture", "block-device-mapping.delete-on-termination", "block-device-mapping.device-name",
		"block-device-mapping.encrypted", "block-device-mapping.snapshot-id", "block-device-mapping.volume-size",
		"block-device-mapping.volume-type", "creation-date", "description", "ena-support", "free-tier-eligible", "hypervisor",
		"image-allowed", "image-id", "image-type", "is-public", "kernel-id", "manifest-location", "name", "owner-alias", "owner-id",
		"platform", "product-code", "product-code.type", "ramdisk-id", "root-device-name", "root-device-type", "source-image-id",
		"source-image-region", "source-instance-id", "sriov-net-support", "state", "state-reason-code", "state-reason-message",
		"tag-key", "virtualization-type",
	}
)

// words are those of a list, between spaces or commas.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
}

// readFilters reads filters of DescribeImages.
func readFilters(list string) (all []types.Filter, err error) {
	for _, one := range strings.Fields(list) {
		name, values, is := strings.Cut(one, "=")
		if !is || name == "" || len(words(values)) == 0 {
			return nil, fmt.Errorf("filters has %q: want NAME=VALUE, or NAME=VALUE,VALUE, with spaces between them", one)
		}
		if !slices.Contains(imageFilterNames, name) && (!strings.HasPrefix(name, "tag:") || name == "tag:") {
			return nil, fmt.Errorf("filters has %q, by which EC2 finds no images: want tag:KEY, or one of %s", name,
				strings.Join(imageFilterNames, ", "))
		}
		all = append(all, filter(name, words(values)...))
	}
	return all, nil
}
