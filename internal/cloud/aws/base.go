package aws

import (
	"context"
	"sync"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/elotl/kip/internal/cloud"
)

// base is what all areas of EC2 share: the configuration, the API, and where Kip is.
type base struct {
	cfg        Config
	api        *ec2.Client
	dialPublic bool
	onInstance bool // Kip runs on one in the VPC
	unlocated  bool // no metadata service answered: Kip is outside, or that was silent for a moment

	toldMu sync.Mutex
	told   map[string]string // what was told last, by its subject
}

// describe reads all pages of a call.
func (b *base) describe(ctx context.Context, in *ec2.DescribeInstancesInput) (all []cloud.Instance, err error) {
	err = eachPage(ctx, ec2.NewDescribeInstancesPaginator(b.api, in), func(page *ec2.DescribeInstancesOutput) {
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				all = append(all, instanceOf(i))
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// outside says where Kip is, for an error, and what is right where that is not true: a pod does not reach the
// metadata service of a node whose hop limit is 1, nor is there one on Fargate.
func (b *base) outside(vpc string) string {
	if !b.unlocated {
		return "outside of " + vpc
	}
	return "outside of " + vpc + " (so it seems, since no metadata service answers: if it is inside, want cells.privateIPOnly: true)"
}

// isNews reports whether the text differs from the one that was told of the subject last, and remembers it.
func (b *base) isNews(subject, text string) bool {
	b.toldMu.Lock()
	defer b.toldMu.Unlock()
	if b.told == nil {
		b.told = map[string]string{}
	}
	if last, was := b.told[subject]; was && last == text {
		return false
	}
	b.told[subject] = text
	return true
}
