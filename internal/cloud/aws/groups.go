package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/elotl/kip/internal/cloud"
)

// securityGroups finds the groups that pods name, and makes and keeps the group of an owner's cells.
type securityGroups struct {
	*base
	networks *networks
	rules    *groupRules
	making   chan struct{} // holds one who makes a cells' group, or changes its rules

	mu     sync.Mutex
	groups map[inVPC]string     // IDs by name
	own    map[inVPC]cellsGroup // by owner
}

// inVPC is a name in a VPC.
type inVPC struct{ vpc, name string }

// groupTries bounds how often a group is looked for that is there after all.
const groupTries = 3

// ownGroup is the group of an owner's cells, which is made, and given its rules, before the
// first launch. It is looked at again with each catalogue, and where a launch is stale.
func (e *securityGroups) ownGroup(ctx context.Context, vpc, owner string) (string, error) {
	unlock, err := e.lockGroup(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	e.mu.Lock()
	known := e.own[inVPC{vpc, owner}]
	e.mu.Unlock()
	if known.id != "" {
		return known.id, nil
	}
	made, err := e.makeGroup(ctx, vpc, owner)
	// Another Kip, or a call whose answer was lost, did the same meanwhile.
	for try := 1; try < groupTries && strings.HasSuffix(codeOf(err), ".Duplicate"); try++ {
		made, err = e.makeGroup(ctx, vpc, owner)
	}
	const what = "make the security group of the cells"
	switch cloud.CauseOf(err) {
	case cloud.ErrThrottled, cloud.ErrUnauthorised:
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if err != nil {
		// EC2's no is to the group, and says nothing of what was to be launched: it is no cause
		// of a refusal of that.
		return "", fmt.Errorf("%s: %s", what, err.Error())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own[inVPC{vpc, owner}] = made
	return made.id, nil
}

// lockGroup waits until nobody else makes a cells' group, or changes its rules.
func (e *securityGroups) lockGroup(ctx context.Context) (unlock func(), err error) {
	select {
	case e.making <- struct{}{}:
		return func() { <-e.making }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Admit implements cloud.Admitter. Kip may have come to another instance, or its instance to
// other security groups; or the VPC has other networks.
func (e *securityGroups) Admit(ctx context.Context, owner string) error {
	if err := e.admit(ctx, owner); err != nil {
		return fmt.Errorf("let Kip in by the security group of the cells: %w", err)
	}
	return nil
}

func (e *securityGroups) admit(ctx context.Context, owner string) error {
	if e.unlocated {
		if _, err := whereIsKip(ctx, e.cfg.metadata); err == nil {
			return errors.New("the metadata service was silent when Kip began, so that Kip takes itself to be outside of EC2, and now answers: restart Kip")
		}
	}
	if e.onInstance && len(e.cfg.KipSources) == 0 {
		here, err := whereIsKip(ctx, e.cfg.metadata)
		if err != nil {
			return err
		}
		if len(here.groups) == 0 { // which would let in the whole VPC
			return errors.New("the metadata service tells no security group of the instance that Kip runs on")
		}
		e.rules.moved(here.groups)
	}
	n, err := e.networks.where(ctx)
	if err != nil {
		return err
	}
	unlock, err := e.lockGroup(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	group, err := e.findGroup(ctx, n.vpc, owner)
	if err != nil || group.id == "" {
		return err
	}
	e.keepTags(ctx, group, owner)
	return e.rules.keepRules(ctx, n.vpc, group, !e.unlocated || len(e.cfg.KipSources) > 0)
}

// nameOfGroup is that of the group of an owner's cells.
func nameOfGroup(owner string) string { return "kip-" + owner + "-cells" }

// foundGroup is a group of cells as EC2 shows it; its ID is "" if there is none.
type foundGroup struct {
	id    string
	rules []describedRule
	tags  map[string]string
}

// findGroup finds the group of an owner's cells.
func (e *securityGroups) findGroup(ctx context.Context, vpc, owner string) (foundGroup, error) {
	out, err := e.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
		Filters: []types.Filter{filter("vpc-id", vpc), filter("group-name", nameOfGroup(owner)), filter("tag:"+cloud.TagOwner, owner)},
	})
	if err != nil {
		return foundGroup{}, classify(err, cloud.Scope{})
	}
	if len(out.SecurityGroups) == 0 {
		return foundGroup{}, nil
	}
	g := out.SecurityGroups[0]
	return foundGroup{aws.ToString(g.GroupId), rulesOf(g.IpPermissions), mapOf(g.Tags)}, nil
}

// makeGroup finds the group or makes it, and sees to its rules.
func (e *securityGroups) makeGroup(ctx context.Context, vpc, owner string) (group cellsGroup, err error) {
	found, err := e.findGroup(ctx, vpc, owner)
	if err != nil {
		return cellsGroup{}, err
	}
	group.id = found.id
	if name := nameOfGroup(owner); found.id == "" {
		made, err := e.api.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
			GroupName:   aws.String(name),
			Description: aws.String("Cells of Kip: who may reach them"),
			VpcId:       aws.String(vpc),
			TagSpecifications: []types.TagSpecification{{
				ResourceType: types.ResourceTypeSecurityGroup,
				Tags:         tagsOf(e.groupTags(owner)),
			}},
		})
		if err != nil {
			return cellsGroup{}, classify(err, cloud.Scope{})
		}
		group = cellsGroup{aws.ToString(made.GroupId), e.cfg.Clock.Now()}
		found.id, found.tags = group.id, e.groupTags(owner)
	}
	e.keepTags(ctx, found, owner)
	return group, e.rules.keepRules(ctx, vpc, found, true)
}

// forget has groups found again.
func (e *securityGroups) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.groups)
	clear(e.own)
}

// cellsGroup is the group of an owner's cells.
type cellsGroup struct {
	id string
	// made is when this process made it; zero when it was there.
	made time.Time
}

// newGroup is for how long after its making EC2 may not know a group in other calls.
const newGroup = time.Minute

// notYet returns an error if EC2 does not find a group of a launch yet. One that was just made, or
// that EC2 shows, is not known to all of EC2: the same call succeeds once it is. It returns nil if one is
// gone, which leads to a launch with others.
func (e *securityGroups) notYet(ctx context.Context, groups []string, said error) error {
	later := cloud.No(cloud.ErrNotYet, cloud.Scope{}, fmt.Errorf("the security groups of the launch are not all there, or not yet: %w", said))
	if e.justMade(groups) {
		return later
	}
	out, err := e.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: []types.Filter{filter("group-id", groups...)}})
	if err != nil || len(out.SecurityGroups) == len(groups) {
		return later
	}
	return nil
}

// justMade says that this process made one of the groups a moment ago.
func (e *securityGroups) justMade(groups []string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, own := range e.own {
		if slices.Contains(groups, own.id) && e.cfg.Clock.Since(own.made) < newGroup {
			return true
		}
	}
	return false
}

// groupIDs finds security groups of the VPC, by name or, where one begins as an ID, by that.
func (e *securityGroups) groupIDs(ctx context.Context, vpc string, named []string) ([]string, error) {
	e.mu.Lock()
	known := maps.Clone(e.groups)
	e.mu.Unlock()
	byID := func(g string) bool { return strings.HasPrefix(g, "sg-") }
	for by, of := range map[string]func(string) bool{"group-id": byID, "group-name": func(g string) bool { return !byID(g) }} {
		var unknown []string
		for _, g := range named {
			if of(g) && known[inVPC{vpc, g}] == "" {
				unknown = append(unknown, g)
			}
		}
		if len(unknown) == 0 {
			continue
		}
		out, err := e.api.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{
			Filters: []types.Filter{filter("vpc-id", vpc), filter(by, unknown...)},
		})
		if err != nil {
			return nil, fmt.Errorf("find the security groups %s: %w", strings.Join(unknown, ", "), classify(err, cloud.Scope{}))
		}
		for _, g := range out.SecurityGroups {
			name, id := aws.ToString(g.GroupName), aws.ToString(g.GroupId)
			if by == "group-id" {
				name = id
			}
			known[inVPC{vpc, name}] = id
		}
	}
	var ids []string
	for _, g := range named {
		id := known[inVPC{vpc, g}]
		if id == "" {
			return nil, e.networks.notShown(groupShown(vpc, g), refused("there is no security group %q in %s", g, vpc))
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, g := range named {
		e.networks.saw(groupShown(vpc, g))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.Copy(e.groups, known)
	return ids, nil
}

// groupShown is a group in what EC2 has shown.
func groupShown(vpc, name string) string { return "group " + name + " of " + vpc }

// isOwnGroup says that a right is missing to a security group that a pod names: what names none may be
// launched. The resource is in what EC2 says, or in what STS has decoded of that.
func (e *securityGroups) isOwnGroup(r cloud.LaunchRequest, err error) bool {
	said := saidOf(err)
	if said == nil || !ofEC2(err) || meanings[said.code].about != launched {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	denied := func(id string) bool {
		return regexp.MustCompile(`:security-group/` + regexp.QuoteMeta(id) + `\b`).MatchString(said.message)
	}
	for known, id := range e.groups { // whichever VPC the launch is into: an ID is of one
		if slices.Contains(r.SecurityGroups, known.name) && denied(id) {
			return true
		}
	}
	return slices.ContainsFunc(r.SecurityGroups, denied)
}
