package kip

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cells"
	"github.com/elotl/kip/internal/cloud/local"
	"github.com/elotl/kip/internal/cloudinitfile"
	"github.com/elotl/kip/internal/config"
	"github.com/elotl/kip/internal/pods"
	"github.com/elotl/kip/internal/version"
)

// Child runs what a cloud starts this binary for, and says that it has: the local
// cloud's machines begin in it. Their arguments are those of no command.
func Child(args []string) bool {
	if len(args) == 0 || args[0] != local.MachineCommand {
		return false
	}
	local.MachineMain(args[1:])
	return true
}

// onlyKipsImage says that the cloud's machines have Kip's own image, and no other.
func onlyKipsImage(cfg *config.Config) bool { return cfg.Cloud.Local != nil || cfg.Cloud.QEMU != nil }

// cloudInitSource is the file that cells.cloudInitFile names.
func cloudInitSource(cfg *config.Config) cloudinitfile.Source {
	return cloudinitfile.Source{Path: cfg.Cells.CloudInitFile, KipsImage: onlyKipsImage(cfg)}
}

// launchOptions are what provider.yaml says of each launch.
func launchOptions(cfg *config.Config) cells.Options {
	c := cfg.Cells
	return cells.Options{
		Image:           c.BootImageSpec,
		SecurityGroups:  c.ExtraSecurityGroups,
		InstanceProfile: c.DefaultIAMPermissions,
		PrivateIPOnly:   c.PrivateIPOnly,
	}
}

// agentOf is the agent that cells go over to; nil where that of their image will do.
func agentOf(cfg *config.Config) *agentapi.Agent {
	i := cfg.Cells.Itzo
	if !i.Is() {
		return nil
	}
	return &agentapi.Agent{Version: i.Version, URL: i.URL, SHA256: i.SHA256}
}

// imageName tells what machines boot from what others do.
func imageName(o cells.Options) string {
	image, err := json.Marshal(o.Image)
	if err != nil {
		panic(err) // strings
	}
	if len(o.Image) == 0 {
		image = []byte(version.String()) // which brings its own
	}
	sum := sha256.Sum256(image)
	return hex.EncodeToString(sum[:8])
}

// standbyOptions are those of cells that have no pod yet: a role is only for pods that
// may use the metadata service.
func standbyOptions(cfg *config.Config) cells.Options {
	o := launchOptions(cfg)
	o.InstanceProfile = ""
	return o
}

// grants are what provider.yaml says that pods may ask for.
func grants(cfg *config.Config) pods.Grants {
	g := cfg.Cells.Grants
	all := pods.Grants{
		Unrestricted:      g.Unrestricted,
		PublicAddress:     !cfg.Cells.PrivateIPOnly,
		DaemonSetMachines: cfg.Cells.DaemonSetMachines,
		MaxPricePerHour:   g.MaxPricePerHour.AsApproximateFloat64(),
		MaxKeepFailed:     g.MaxKeepFailed,
		MaxKeptCells:      g.MaxKeptCells,
		UnsafeSysctls:     g.UnsafeSysctls,
	}
	if !g.MaxVolumeSize.IsZero() {
		all.MaxVolumeBytes = max(g.MaxVolumeSize.Value(), cfg.Cells.DefaultVolumeSize.Value()) // which pods get that ask for less
	}
	for _, n := range g.Namespaces {
		all.Namespaces = append(all.Namespaces, pods.NamespaceGrants{
			Namespace:         n.Namespace,
			InstanceProfiles:  n.InstanceProfiles,
			SecurityGroups:    n.SecurityGroups,
			CloudRoutes:       n.CloudRoutes,
			AllowMetadata:     n.AllowMetadata,
			MaxPricePerHour:   n.MaxPricePerHour.AsApproximateFloat64(),
			InstanceTypes:     n.InstanceTypes,
			PublicAddress:     n.PublicAddress,
			Dedicated:         n.Dedicated,
			DaemonSetMachines: n.DaemonSetMachines,
			BesidePods:        n.BesidePods,
			MaxVolumeBytes:    n.MaxVolumeSize.Value(),
			MaxKeepFailed:     n.MaxKeepFailed,
			HostSysctls:       n.HostSysctls,
			HostModules:       n.HostModules,
			UnsafeSysctls:     n.UnsafeSysctls,
		})
	}
	return all
}

// instanceData reads the file with types and prices of one's own; "" is none.
func instanceData(path string) (catalog.InstanceData, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--instance-data-path: %w", err)
	}
	defer f.Close()
	data, err := catalog.ReadInstanceData(path, f)
	if err != nil {
		return nil, fmt.Errorf("--instance-data-path: %w", err)
	}
	return data, nil
}

// budgets are what provider.yaml says that namespaces may cost.
func budgets(cfg *config.Config) (all []cells.Budget) {
	for _, b := range cfg.Cells.Budgets {
		all = append(all, cells.Budget{
			Namespace: b.Namespace,
			PerHour:   b.MaxCostPerHour.AsApproximateFloat64(),
			PerMonth:  b.MaxCostPerMonth.AsApproximateFloat64(),
		})
	}
	return all
}

// terms are what provider.yaml says of prices.
func terms(cfg *config.Config) (all []catalog.Term) {
	for _, p := range cfg.Cells.Prices {
		all = append(all, catalog.Term{
			InstanceTypes: p.InstanceTypes,
			Regions:       p.Regions,
			Spot:          p.Spot,
			Dedicated:     p.Dedicated,
			Discount:      p.Discount.AsApproximateFloat64() / 100,
			PricePerHour:  p.PricePerHour.AsApproximateFloat64(),
			Prefer:        p.Prefer.AsApproximateFloat64() / 100,
			Exclude:       p.Exclude,
		})
	}
	return all
}

// healthCheck is how often the cells' leases are looked at: each is renewed every
// 10 seconds.
const healthCheck = 5 * time.Second

// health is what cells.healthcheck says.
func health(cfg *config.Config) cells.Health {
	if a := cfg.Cells.Healthcheck.CloudAPI; a != nil {
		return cells.Health{
			CloudAPI:       true,
			HealthyTimeout: a.HealthyTimeout,
			Interval:       a.Interval,
			Check:          healthCheck,
		}
	}
	return cells.Health{HealthyTimeout: cfg.Cells.Healthcheck.Status.HealthyTimeout, Check: healthCheck}
}

// template names what a cell is made of, so that standby cells of another are
// replaced: everything that reaches a machine before its pod does, and where it is.
func template(cfg *config.Config, caHash string) string {
	c := cfg.Cells
	var ofCloud []any
	if a := cfg.Cloud.AWS; a != nil {
		ofCloud = []any{a.VPCID, a.SubnetID, a.SubnetTags, a.CPUCredits, c.Tags, a.ClusterName, a.KMSKeyID, a.PublicAddress}
	}
	made, err := json.Marshal([]any{
		version.String(), caHash, c.BootImageSpec, c.Itzo, c.RegistryMirrors, c.Registries, c.CredentialProviders, c.ReservedMemory,
		standbyOptions(cfg), c.DefaultVolumeSize.Value(), ofCloud,
	})
	if err != nil {
		panic(err) // strings, maps of strings and numbers
	}
	sum := sha256.Sum256(made)
	return hex.EncodeToString(sum[:8])
}
