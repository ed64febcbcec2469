package clouds

import (
	"context"
	"log/slog"

	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/aws"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/finding"
)

// Driver opens one cloud.
type Driver struct {
	// Name is the cloud's key in provider.yaml.
	Name string
	// Open returns the cloud, and what closes it once nothing calls it any more. The configuration names this cloud.
	Open func(ctx context.Context, cfg *config.Config, by By, log *slog.Logger) (cloud.Cloud, func() error, error)
}

// Set is the clouds that a program can open.
type Set []Driver

// Shipped returns the clouds of the programs that users get.
func Shipped() Set {
	return Set{{"local", openHost}, {"qemu", openHost}, {"aws", openAWS}}
}

// CheckBuild returns an error for keys of provider.yaml that cannot have their effect in this build. Call it before anything
// else begins: a Kip that waits for its turn would otherwise report them only when it has it.
func (s Set) CheckBuild(cfg *config.Config) error {
	if _, err := s.of(cfg); err != nil {
		return err
	}
	if cfg.Cloud.AWS != nil {
		return cfg.Refuse(notOnAWS(cfg))
	}
	return nil
}

// of returns the driver of the cloud that provider.yaml names.
func (s Set) of(cfg *config.Config) (d Driver, err error) {
	names := make([]string, len(s))
	for i, known := range s {
		if names[i] = known.Name; known.Name == cfg.Cloud.Name() {
			d = known
		}
	}
	return d, cfg.CheckCloud(names...)
}

// notOnAWS are the keys that are set and cannot have their effect on EC2 in this build,
// with what is wrong with each.
func notOnAWS(cfg *config.Config) map[string]string {
	c, problems := cfg.Cells, map[string]string{}
	refuse := func(refused bool, key, problem string) {
		if refused {
			problems[key] = problem
		}
	}
	if err := aws.CheckImage(c.BootImageSpec); err != nil {
		problems["cells.bootImageSpec"] = err.Error()
	}
	refuse(c.UseCloudParameterStore, "cells.useCloudParameterStore",
		"true is not valid: want false, since user data holds no secret but one that joins once, and then is worth nothing")
	return problems
}

// ofAWS are the settings of EC2's driver; cfg has cloud.aws.
func ofAWS(cfg *config.Config, log *slog.Logger) aws.Config {
	a := cfg.Cloud.AWS
	return aws.Config{
		Region:          a.Region,
		AccessKeyID:     a.AccessKeyID.Reveal(),
		SecretAccessKey: a.SecretAccessKey.Reveal(),
		VPC:             a.VPCID,
		Subnets:         a.Subnets(),
		CPUCredits:      a.CPUCredits,
		Dedicated:       cfg.Cells.MayBeDedicated(),
		SubnetTags:      a.SubnetTags,
		Image:           cfg.Cells.BootImageSpec,
		Reservations:    aws.Choice(a.CapacityReservations),
		Hosts:           aws.Choice(a.DedicatedHosts),
		ImageRole:       a.ECR.RoleARN,
		PullThrough:     a.ECR.PullThroughCache,
		Endpoint:        a.EndpointURL,
		Endpoints:       aws.Endpoints(a.Endpoints),
		SkipVerify:      a.InsecureTLSSkipVerify,
		UseFIPS:         a.UseFIPS,
		KMSKey:          a.KMSKeyID,
		ExtraCIDRs:      cfg.Cells.ExtraCIDRs,
		KipSources:      a.KipSources,
		PrivateOnly:     cfg.Cells.PrivateIPOnly,
		PublicAddress:   a.PublicAddress,
		Tags:            cfg.Cells.Tags,
		GroupTags:       a.SecurityGroupTags,
		Cluster:         a.ClusterName,
		Log:             log.With("cloud", "aws"),

		RootDiskInitRate: int32(a.VolumeInitializationRate),
	}
}

// By is who opens a cloud. All fields are optional.
type By struct {
	// Owner is the controller, whose instances are its own.
	Owner string
	// Facts are kept of the account; nil for no longer than the cloud is open.
	Facts cloud.Facts
	// AgentsOpen reports to the operator that others reach the agents.
	AgentsOpen func(group string, port int, rules string)
	// EndsOnly says that nothing is launched: what there is is listed and ended, from wherever this program runs.
	EndsOnly bool
}

// Open returns the one cloud that provider.yaml names, and what closes it once nothing
// calls it any more.
func (s Set) Open(ctx context.Context, cfg *config.Config, by By, log *slog.Logger) (cloud.Cloud, func() error, error) {
	d, err := s.of(cfg)
	if err == nil && !by.EndsOnly {
		err = s.CheckBuild(cfg)
	}
	if err != nil {
		return nil, nil, err
	}
	return d.Open(ctx, cfg, by, log)
}

// openAWS opens EC2.
func openAWS(ctx context.Context, cfg *config.Config, by By, log *slog.Logger) (cloud.Cloud, func() error, error) {
	settings := ofAWS(cfg, log)
	settings.Owner, settings.Facts, settings.AgentsOpen, settings.EndsOnly = by.Owner, by.Facts, by.AgentsOpen, by.EndsOnly
	machines, err := aws.New(ctx, settings)
	if err != nil {
		return nil, nil, err
	}
	return machines, func() error { return nil }, nil // it holds nothing open
}

// AccountChecks returns the checks of the account in which cells would be launched; none where cells are machines of a host.
// They change nothing, and ask as whoever runs them, who need not be that Kip. With instance types, the cloud is also asked by dry
// runs whether it would launch one of them.
func AccountChecks(
	ctx context.Context, cfg *config.Config, kip finding.Kip, instanceTypes []string, log *slog.Logger,
) ([]finding.Check, error) {
	if err := Shipped().CheckBuild(cfg); err != nil || cfg.Cloud.AWS == nil {
		return nil, err
	}
	return aws.Checks(ctx, ofAWS(cfg, log), aws.Wanted{
		InstanceType:   cfg.Cells.DefaultInstanceType,
		SecurityGroups: cfg.Cells.ExtraSecurityGroups,
		DryRun:         instanceTypes,
		Kip:            kip,
	}), nil
}
