package ec2

import (
	"net/http"
	"slices"
	"strings"
)

// launchRights judges whether a caller may launch.
type launchRights struct {
	*base
	images *images

	noSpotRole bool
}

// mayLaunch asks the policy about each resource that the launch uses or makes, as IAM does.
func (m *launchRights) mayLaunch(r *request, l *launch, image, subnet string, groups []string, tags map[string]map[string]string) error {
	type use struct {
		resource string
		tags     map[string]string
	}
	uses := []use{
		{"instance/*", tags["instance"]},
		{"volume/*", tags["volume"]},
		{"network-interface/*", tags["network-interface"]},
		{"subnet/" + subnet, nil},
	}
	if r.text("InstanceMarketOptions.MarketType") == "spot" {
		uses = append(uses, use{"spot-instances-request/*", tags["spot-instances-request"]})
	}
	if l.key != "" {
		uses = append(uses, use{"key-pair/" + l.key, nil})
	}
	if l.reservation != "" {
		uses = append(uses, use{"capacity-reservation/" + l.reservation, nil})
	}
	if l.host != "" { // as policies of others grant it, such as AmazonEMRServicePolicy_v2
		uses = append(uses, use{"dedicated-host/" + l.host, nil})
	}
	if len(groups) == 0 {
		groups = []string{"sg-default"}
	}
	for _, g := range groups {
		uses = append(uses, use{"security-group/" + g, nil})
	}
	for _, u := range uses {
		if err := m.may(r, "ec2:RunInstances", m.arn(u.resource), tagged("RequestTag", u.tags)); err != nil {
			return err
		}
		if len(u.tags) == 0 {
			continue
		}
		about := tagged("RequestTag", u.tags)
		about["ec2:CreateAction"] = []string{"RunInstances"}
		if err := m.may(r, "ec2:CreateTags", m.arn(u.resource), about); err != nil {
			return err
		}
	}
	if err := m.may(r, "ec2:RunInstances", m.publicARN("image/"+image), tagged("ResourceTag", m.images.imageTags(image))); err != nil {
		return err
	}
	// EC2 asks for no right to the snapshot of the image: its own examples of policies for a launch have none (EC2 User Guide,
	// "Example policies to control access the Amazon EC2 API"). It asks for that to a snapshot that the call names (Service
	// Authorization Reference, "Actions, resources, and condition keys for Amazon EC2", RunInstances).
	for _, d := range l.devices {
		if d.Snapshot == "" {
			continue
		}
		if err := m.may(r, "ec2:RunInstances", m.snapshotARN(d.Snapshot), nil); err != nil {
			return err
		}
	}
	if err := m.spotRole(r); err != nil {
		return err
	}
	if l.profile == "" {
		return nil
	}
	name := roleOf(l.profile)
	_, service := m.partition()
	return m.may(r, "iam:PassRole", m.arnOf("iam", "", m.cfg.Account, "role/"+name), map[string][]string{"iam:PassedToService": {service}})
}

// roleOf is the name of the role in an instance profile, of which an ARN or the name is given: the same.
func roleOf(profile string) string { return profile[strings.LastIndex(profile, "/")+1:] }

// spotRole makes the role that spot instances need, where there is none and the caller may.
func (m *launchRights) spotRole(r *request) error {
	m.mu.Lock()
	missing := m.noSpotRole && r.text("InstanceMarketOptions.MarketType") == "spot"
	m.mu.Unlock()
	if !missing {
		return nil
	}
	const service = "spot.amazonaws.com"
	role := m.arnOf("iam", "", m.cfg.Account, "role/aws-service-role/"+service+"/AWSServiceRoleForEC2Spot")
	if m.may(r, "iam:CreateServiceLinkedRole", role, map[string][]string{"iam:AWSServiceName": {service}}) != nil {
		return &apiError{http.StatusForbidden, "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
			"The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances."}
	}
	m.mu.Lock()
	m.noSpotRole = false
	m.mu.Unlock()
	return nil
}

// encrypts says whether the caller may use the keys of the encrypted disks of a launch.
func (m *launchRights) encrypts(r *request, l *launch) bool {
	return !slices.ContainsFunc(l.devices, func(d deviceXML) bool {
		return d.Encrypted && !m.mayUseKey(r, d.Key, "ec2", volumeRights)
	})
}
