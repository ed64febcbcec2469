package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elotl/kip/internal/cloud/local/sizes"
	"github.com/elotl/kip/internal/credentialproviders"
	"github.com/elotl/kip/internal/sysctls"
	"github.com/elotl/kip/internal/volumes"
)

// Load reads and checks a provider.yaml, and whether the files that it names are
// there. The error joins an *Error for each thing that is wrong.
func Load(path string) (*Config, []Warning, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the configuration: %w", err)
	}
	c, d := parse(path, data)
	d.files(c)
	return d.result(c)
}

// Parse reads and checks a provider.yaml; name is for errors. The error joins an
// *Error for each thing that is wrong.
func Parse(name string, data []byte) (*Config, []Warning, error) {
	c, d := parse(name, data)
	return d.result(c)
}

func parse(name string, data []byte) (*Config, *decoder) {
	d := &decoder{positions: positions{file: name, line: map[string]int{}}}
	return d.parse(data), d
}

func (d *decoder) parse(data []byte) *Config {
	c := &Config{}
	setDefaults(reflect.ValueOf(c).Elem())
	doc := d.document(data)
	if doc == nil {
		return c
	}
	d.value("", doc, reflect.ValueOf(c).Elem())
	d.validate(c)
	c.at = d.positions
	return c
}

// result is what Load and Parse return, in order of lines.
func (d *decoder) result(c *Config) (*Config, []Warning, error) {
	slices.SortFunc(d.warnings, func(a, b Warning) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key)) })
	if d.errs == nil {
		return c, d.warnings, nil
	}
	slices.SortFunc(d.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Problem, b.Problem))
	})
	return nil, d.warnings, joined(d.errs)
}

// CheckCloud returns an *Error unless the cloud that is configured is one of
// those that a build has.
func (c *Config) CheckCloud(built ...string) error {
	name := c.Cloud.Name()
	if slices.Contains(built, name) {
		return nil
	}
	key := "cloud." + name
	return &Error{
		File: c.at.file,
		Line: c.at.of(key),
		Key:  key,
		Problem: "this cloud is not in this build: want " + strings.Join(built,
			" or "),
	}
}

// Refuse returns an *Error for each key with what is wrong with its value in this build,
// joined; nil if there are none.
func (c *Config) Refuse(problems map[string]string) error {
	var errs []*Error
	for _, key := range slices.Sorted(maps.Keys(problems)) {
		errs = append(errs, &Error{
			File:    c.at.file,
			Line:    c.at.of(key),
			Key:     key,
			Problem: problems[key],
		})
	}
	return joined(errs)
}

// CheckStopped returns an *Error for each pool of standby cells that is to be kept
// stopped, joined, unless the cloud that is configured can stop instances.
func (c *Config) CheckStopped(can bool) error {
	var errs []*Error
	for i, s := range c.Cells.StandbyCells {
		if key := fmt.Sprintf("cells.standbyCells[%d].stopped", i); s.Stopped && !can {
			errs = append(errs, &Error{
				File: c.at.file,
				Line: c.at.of(key),
				Key:  key,
				Problem: "cloud." + c.Cloud.Name() +
					" cannot stop instances in this build: want false",
			})
		}
	}
	return joined(errs)
}

// bad notes that the value of a key is wrong, unless that key, or one around it,
// already has an error: what follows from that is noise.
func (d *decoder) bad(key, format string, args ...any) {
	for around := key; ; around = parent(around) {
		if slices.ContainsFunc(d.errs, func(e *Error) bool { return e.Key == around }) {
			return
		}
		if around == "" {
			break
		}
	}
	d.fail(d.of(key), key, format, args...)
}

// check notes an error unless ok.
func (d *decoder) check(ok bool, key, value, want string) {
	if !ok {
		d.bad(key, "%s is not valid: want %s", quote(value), want)
	}
}

// require notes an error when a key has no value.
func (d *decoder) require(key, value string) {
	if strings.TrimSpace(value) == "" {
		d.bad(key, "there is no value: this key is required")
	}
}

var (
	awsRegion = regexp.MustCompile(`^[a-z]{2,}(-[a-z]+)+-[0-9]+$`)
	dns952    = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	lowerID   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	// agentVersion is what the agent takes for one, too.
	agentVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	sha256Digits = regexp.MustCompile(`^[0-9a-f]{64}$`)
	ifName       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)
	// Source: IAM User Guide, "IAM identifiers" and "IAM and AWS STS quotas".
	roleARN = regexp.MustCompile(`^arn:aws(-[a-z]+)*:iam::[0-9]{12}:role/([!-.0-~]+/)*[\w+=,.@-]{1,64}$`)
)

func (d *decoder) validate(c *Config) {
	d.check(c.APIVersion == "v1", "apiVersion", c.APIVersion, "v1")
	d.check(c.Kind == "serverConfig", "kind", c.Kind, "serverConfig")
	d.cloud(c.Cloud, c.Cells)
	d.etcd(c.Etcd)
	if c.Cells.ReservedMemory.Format == "" { // the file does not say it; 0 has a format
		c.Cells.ReservedMemory = c.Cloud.reservedMemory()
	}
	d.cells(&c.Cells)
	d.standbyCells(c)
	d.kubelet(&c.Kubelet)
	d.nodes(c)
	d.noPages(c)
	d.servingCertificate(c.ServingCertificate)
	d.costs(c.Costs)
	d.profiles(c.Admission.Profiles)
	if c.Cloud.AWS != nil {
		d.tagsOfAWS(c)
	}
	id := c.Testing.ControllerID
	d.check(id == "" || lowerID.MatchString(id), "testing.controllerID", id, "at most 63 lower-case letters, digits and dashes")
	d.otherClouds(c.Cloud.Name())
}

// onHost checks the network of a cloud on this host, whose key is at.
func (d *decoder) onHost(at, bridge string, four, six netip.Prefix) {
	d.check(ifName.MatchString(bridge), at+".bridge", bridge,
		"the name of a network device: at most 15 letters, digits, dots, dashes and underscores")
	d.check(four.Addr().Is4() && four.Bits() >= 8 && four.Bits() <= 28, at+".cidr", four.String(), "an IPv4 network from /8 to /28")
	if six.IsValid() {
		good := six.Addr().Is6() && !six.Addr().Is4In6() && six.Addr().IsGlobalUnicast() && six.Bits() >= 16 && six.Bits() <= 96
		d.check(good, at+".ipv6CIDR", six.String(), "an IPv6 network from /16 to /96, such as fd10:110::/64")
	}
}

func (d *decoder) cloud(c Cloud, cells Cells) {
	var chosen []string
	for _, name := range keysOf(reflect.TypeFor[Cloud]()) {
		if d.has("cloud." + name) {
			chosen = append(chosen, name)
		}
	}
	if len(chosen) != 1 {
		had := "none is there"
		if len(chosen) > 0 {
			had = strings.Join(chosen, " and ") + " are there"
		}
		d.bad("cloud", "%s: want exactly one of %s", had, strings.Join(keysOf(reflect.TypeFor[Cloud]()), ", "))
	}
	if l := c.Local; l != nil {
		d.require("cloud.local.stateDir", l.StateDir)
		d.require("cloud.local.rootDir", l.RootDir)
		d.onHost("cloud.local", l.Bridge, l.CIDR, l.IPv6CIDR)
		d.hostZones("cloud.local.zones", l.Zones)
		d.check(l.GPUs >= 0 && l.GPUs <= sizes.MostGPUs, "cloud.local.gpus", fmt.Sprint(l.GPUs),
			fmt.Sprintf("a number from 0 to %d", sizes.MostGPUs))
	}
	if q := c.QEMU; q != nil {
		d.require("cloud.qemu.stateDir", q.StateDir)
		d.require("cloud.qemu.image", q.Image)
		form := filepath.Ext(q.Image)
		d.check(q.Image == "" || form == ".qcow2" || form == ".raw", "cloud.qemu.image", q.Image, "a file whose name ends in .qcow2 or .raw")
		d.check(slices.Contains(Accelerators, q.Accelerator), "cloud.qemu.accelerator", q.Accelerator, strings.Join(Accelerators, ", "))
		d.onHost("cloud.qemu", q.Bridge, q.CIDR, q.IPv6CIDR)
		d.hostZones("cloud.qemu.zones", q.Zones)
	}
	if c.Sim != nil {
		d.require("cloud.sim.socket", c.Sim.Socket)
	}
	if c.AWS != nil {
		d.aws(c.AWS, cells)
	}
	if g := c.GCE; g != nil && g.Credentials != nil {
		if g.CredentialsFile != "" {
			d.bad("cloud.gce.credentials", "credentialsFile is there too: want only one of them")
		}
		d.require("cloud.gce.credentials.clientEmail", g.Credentials.ClientEmail)
		d.require("cloud.gce.credentials.privateKey", g.Credentials.PrivateKey.Reveal())
	}
	if a := c.Azure; a != nil {
		d.require("cloud.azure.subscriptionID", a.SubscriptionID)
		d.require("cloud.azure.location", a.Location)
		d.require("cloud.azure.resourceGroup", a.ResourceGroup)
	}
}

func (d *decoder) aws(a *AWS, cells Cells) {
	d.check(a.Region == "" || a.EndpointURL != "" || awsRegion.MatchString(a.Region), "cloud.aws.region", a.Region,
		"a region such as us-east-1")
	d.check(a.EndpointURL == "" || isURL(a.EndpointURL), "cloud.aws.endpointURL", a.EndpointURL, "a URL such as https://ec2.example.com")
	for _, at := range []struct{ key, url string }{
		{"sts", a.Endpoints.STS}, {"ecr", a.Endpoints.ECR}, {"pricing", a.Endpoints.Pricing},
	} {
		key := "cloud.aws.endpoints." + at.key
		d.check(at.url == "" || isURL(at.url), key, at.url, "a URL such as https://"+at.key+".example.com")
		d.check(at.url == "" || a.EndpointURL != "", key, at.url, "none, since there is no cloud.aws.endpointURL")
	}
	d.check(!a.InsecureTLSSkipVerify || a.EndpointURL != "", "cloud.aws.insecureTLSSkipVerify", "true",
		"false, since there is no cloud.aws.endpointURL")
	d.check(!a.UseFIPS || a.EndpointURL == "", "cloud.aws.useFIPS", "true", "false, since cloud.aws.endpointURL says whom to ask")
	d.check(!a.UseFIPS || !strings.HasPrefix(a.Region, "cn-"), "cloud.aws.useFIPS", "true", "false, since AWS has no such endpoints in China")
	for _, id := range a.Subnets() {
		d.check(strings.HasPrefix(id, "subnet-"), "cloud.aws.subnetID", id, "IDs such as subnet-0123456789abcdef0, separated by commas")
	}
	d.check(len(a.SubnetTags) == 0 || a.SubnetID == "", "cloud.aws.subnetTags", fmt.Sprint(a.SubnetTags),
		"none, since there is cloud.aws.subnetID")
	d.tagKeys("cloud.aws.subnetTags", a.SubnetTags)
	rate := a.VolumeInitializationRate
	d.check(rate == 0 || rate >= 100 && rate <= 300, "cloud.aws.volumeInitializationRate", fmt.Sprint(rate), "100 to 300, or 0 for no rate")
	credits := []string{"boot", "standard", "unlimited"}
	d.check(slices.Contains(credits, a.CPUCredits), "cloud.aws.cpuCredits", a.CPUCredits, "boot, standard or unlimited")
	d.check(a.CPUCredits != "unlimited" || !strings.HasPrefix(a.Region, "cn-"), "cloud.aws.cpuCredits", a.CPUCredits,
		"boot or standard, since the price of credits in China is not known")
	d.chosen("cloud.aws.capacityReservations", "cr-", a.CapacityReservations.IDs, a.CapacityReservations.Tags)
	d.chosen("cloud.aws.dedicatedHosts", "h-", a.DedicatedHosts.IDs, a.DedicatedHosts.Tags)
	if d.has("cloud.aws.dedicatedHosts") && !cells.MayBeDedicated() {
		d.warn("cloud.aws.dedicatedHosts", "nobody may use them: want cells.grants that let a namespace have dedicated cells")
	}
	d.check(a.VPCID == "" || a.VPCID == "default" || strings.HasPrefix(a.VPCID, "vpc-"), "cloud.aws.vpcID", a.VPCID,
		"an ID such as vpc-0123456789abcdef0, or default")
	d.check(a.ECR.RoleARN == "" || roleARN.MatchString(a.ECR.RoleARN), "cloud.aws.ecr.roleARN", a.ECR.RoleARN,
		"the ARN of a role such as arn:aws:iam::123456789012:role/kip-images")
	d.check(a.KMSKeyID == "" || a.EndpointURL != "" || kmsKey.MatchString(a.KMSKeyID), "cloud.aws.kmsKeyID", a.KMSKeyID,
		"the ID of a key such as 1234abcd-12ab-34cd-56ef-1234567890ab, its ARN, or an alias such as alias/cells")
	d.check(!a.ECR.PullThroughCache || a.ECR.RoleARN != "", "cloud.aws.ecr.pullThroughCache", "true",
		"false, since there is no cloud.aws.ecr.roleARN")
	for i, source := range a.KipSources {
		_, err := netip.ParsePrefix(source)
		d.check(err == nil || strings.HasPrefix(source, "sg-"), fmt.Sprintf("cloud.aws.kipSources[%d]", i), source,
			"a network such as 10.0.3.7/32, or the ID of a security group such as sg-0123456789abcdef0")
	}
	d.together("cloud.aws.accessKeyID", a.AccessKeyID != "", "cloud.aws.secretAccessKey", a.SecretAccessKey != "")
}

// chosen checks the IDs, which begin with a prefix, and the tags of things of a cloud.
func (d *decoder) chosen(at, prefix string, ids []string, tags map[string]string) {
	d.tagKeys(at+".tags", tags)
	for i, id := range ids {
		d.check(strings.HasPrefix(id, prefix), fmt.Sprintf("%s.ids[%d]", at, i), id, "an ID such as "+prefix+"0123456789abcdef0")
	}
}

// tagKeys checks the tags by which things of a cloud are found.
func (d *decoder) tagKeys(at string, tags map[string]string) {
	for key := range tags {
		d.check(strings.TrimSpace(key) != "", at, key, "keys that are not empty")
	}
}

// together notes an error when only one of two keys has a value.
func (d *decoder) together(a string, hasA bool, b string, hasB bool) {
	if hasA && !hasB {
		d.bad(b, "there is no value: %s needs it", a)
	}
	if hasB && !hasA {
		d.bad(a, "there is no value: %s needs it", b)
	}
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func (d *decoder) etcd(e Etcd) {
	c := e.Client
	var first string // scheme of the endpoints
	for i, endpoint := range c.Endpoints {
		key := fmt.Sprintf("etcd.client.endpoints[%d]", i)
		u, err := url.Parse(endpoint)
		if strings.Contains(endpoint, "@") {
			d.bad(key, "there is a user name in it: want a URL such as https://etcd-0:2379; etcd is told who asks by etcd.client.certFile")
			continue // without the value: there may be a password in it
		}
		if err != nil || !isURL(endpoint) || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			d.check(false, key, endpoint, "a URL such as https://etcd-0:2379")
			continue
		}
		first = cmp.Or(first, u.Scheme)
		switch {
		case u.Scheme != first:
			d.bad(key, "%s is not valid: want %s, as in the endpoints before it", quote(endpoint), first)
		case u.Scheme == "http" && !c.AllowPlainText:
			d.check(false, key, endpoint, "https, or etcd.client.allowPlainText: true where nobody else is on the way")
		}
	}
	d.together("etcd.client.certFile", c.CertFile != "", "etcd.client.keyFile", c.KeyFile != "")
	files := map[string]string{"etcd.client.certFile": c.CertFile, "etcd.client.keyFile": c.KeyFile, "etcd.client.caFile": c.CAFile}
	for key, file := range files {
		switch {
		case file == "":
		case len(c.Endpoints) == 0:
			d.bad(key, "there are no etcd.client.endpoints to use it with")
		case first == "http":
			d.bad(key, "the etcd.client.endpoints are http, without TLS: want https, or no %s", key)
		}
	}
	seen := map[string]bool{}
	for i, file := range e.EncryptionKeyFiles {
		key := fmt.Sprintf("etcd.encryptionKeyFiles[%d]", i)
		d.require(key, file)
		d.check(!seen[file] || file == "", key, file, "each file once")
		seen[file] = true
	}
	switch {
	case len(c.Endpoints) == 0:
		d.require("etcd.internal.dataDir", e.Internal.DataDir)
	case d.has("etcd.internal"):
		d.warn("etcd.internal", "is not used, since there are etcd.client.endpoints")
	}
}

// cellConfig is the key of settings of cells, none of which has an effect any more.
const cellConfig = "cells.cellConfig"

// insteadOf says what has taken the place of a key of cells.cellConfig: those that earlier
// releases knew.
func insteadOf(key string) string {
	const ofOnesOwn = ", on an image of your own"
	switch {
	case strings.HasPrefix(key, "imageCache"):
		return "for images from nearby there is cells.registryMirrors"
	case strings.HasPrefix(key, "itzoFlag-"):
		return "the agent's flags are those of its unit" + ofOnesOwn + " (systemctl edit itzo, by runcmd in cells.cloudInitFile)"
	case strings.HasPrefix(key, "fluentdAWS"), strings.HasPrefix(key, "awsCWAgent"):
		return "an agent of logs or figures is started by runcmd in cells.cloudInitFile" + ofOnesOwn + ", or runs in the pod"
	}
	return "files and commands are given to cells by cells.cloudInitFile"
}

func (d *decoder) cells(c *Cells) {
	d.require("cells.defaultInstanceType", c.DefaultInstanceType)
	d.check(c.DefaultVolumeSize.Cmp(resource.MustParse("1Gi")) >= 0, "cells.defaultVolumeSize", c.DefaultVolumeSize.String(), "at least 1Gi")
	d.check(c.InterruptionPenalty >= 0 && c.InterruptionPenalty <= 100, "cells.interruptionPenalty",
		fmt.Sprint(c.InterruptionPenalty), "0 to 100")
	d.check(c.SpotSpread >= 0 && c.SpotSpread <= 100, "cells.spotSpread", fmt.Sprint(c.SpotSpread), "0 to 100")
	d.check(c.ReservedMemory.Sign() >= 0, "cells.reservedMemory", c.ReservedMemory.String(), "a quantity of 0 or more")
	for _, key := range slices.Sorted(maps.Keys(c.CellConfig)) {
		d.replaced = append(d.replaced, replacement{parent: cellConfig, name: key, why: insteadOf(key)})
		if !d.migrates {
			d.bad(join(cellConfig, key), "it has no effect any more: want none; %s", insteadOf(key))
		}
	}
	d.check(c.StatusInterval > 0, "cells.statusInterval", seconds(c.StatusInterval), "a number of seconds above 0")
	d.check(c.Nametag == "" || len(c.Nametag) <= 24 && dns952.MatchString(c.Nametag), "cells.nametag", c.Nametag,
		"at most 24 lower-case letters, digits and dashes, a letter first and no dash last")
	d.check(c.MaxAttempts >= 0, "cells.maxAttempts", fmt.Sprint(c.MaxAttempts), "0, for no bound, or more")
	for i, group := range c.ExtraSecurityGroups {
		d.require(fmt.Sprintf("cells.extraSecurityGroups[%d]", i), group)
	}
	d.itzo(c.Itzo)
	for _, host := range slices.Sorted(maps.Keys(c.RegistryMirrors)) {
		key := join("cells.registryMirrors", host)
		if host == "" || strings.ContainsAny(host, "/ ") {
			d.bad(key, "%s is not valid: want the name of an image host such as docker.io or registry.example.com:5000, or _default", quote(host))
		}
		if len(c.RegistryMirrors[host]) == 0 {
			d.bad(key, "there is no value: want at least one URL")
		}
		for i, mirror := range c.RegistryMirrors[host] {
			d.check(isURL(mirror), fmt.Sprintf("%s[%d]", key, i), mirror, "a URL such as http://10.110.0.1:5000")
		}
	}

	d.registries(c.Registries)
	d.credentialProviders(c.CredentialProviders)
	d.csiDrivers(c.CSIDrivers)
	d.daemonSets(c.DaemonSets)
	d.prices(c.Prices)
	d.budgets(c.Budgets)
	d.grants(c.Grants)

	l := c.EndLimit
	d.check(l.Percent >= 0 && l.Percent <= 100, "cells.endLimit.percent", fmt.Sprint(l.Percent), "0 to 100")
	d.check(l.Least >= 0, "cells.endLimit.least", fmt.Sprint(l.Least), "0 or more")
	d.check(l.Window >= time.Minute, "cells.endLimit.window", seconds(l.Window), "at least 60 seconds")

	d.check(c.MaxAge == 0 || c.MaxAge >= time.Hour, "cells.maxAge", seconds(c.MaxAge), "0, for any age, or at least 3600 seconds")
	d.check(c.CAOverlap >= 10*time.Second, "cells.caOverlap", seconds(c.CAOverlap), "at least 10 seconds")

	h := &c.Healthcheck
	switch {
	case h.Status != nil && h.CloudAPI != nil:
		d.bad("cells.healthcheck", "status and cloudAPI are there: want only one of them")
	case h.Status == nil && h.CloudAPI == nil:
		h.Status = &HealthcheckStatus{}
		setDefaults(reflect.ValueOf(h.Status).Elem())
	}
	if s := h.Status; s != nil {
		const key = "cells.healthcheck.status.healthyTimeout"
		d.check(s.HealthyTimeout > 0, key, seconds(s.HealthyTimeout), "a number of seconds above 0")
		if s.HealthyTimeout < silence {
			d.warn(key, "healthy cells are lost too, since one is heard of every 10 seconds only: want at least %v", silence.Seconds())
		}
	}
	if a := h.CloudAPI; a != nil {
		d.check(a.Interval >= 10*time.Second, "cells.healthcheck.cloudAPI.interval", seconds(a.Interval), "at least 10 seconds")
		const key = "cells.healthcheck.cloudAPI.healthyTimeout"
		d.check(a.HealthyTimeout > 0, key, seconds(a.HealthyTimeout), "a number of seconds above 0")
		// Otherwise each cell would be lost before the cloud is asked again.
		d.check(a.HealthyTimeout > a.Interval, key, seconds(a.HealthyTimeout),
			fmt.Sprintf("more than cells.healthcheck.cloudAPI.interval, %v seconds", a.Interval.Seconds()))
	}
}

// itzo checks what names another agent.
func (d *decoder) itzo(i Itzo) {
	if i.Version == "" && i.URL == "" && len(i.SHA256) == 0 {
		return
	}
	d.require("cells.itzo.version", i.Version)
	d.require("cells.itzo.url", i.URL)
	const version = "cells.itzo.version"
	d.check(i.Version == "" || agentVersion.MatchString(i.Version), version, i.Version,
		"at most 64 letters, digits and . _ + -, a letter or digit first, such as v1.2.3")
	u, err := url.Parse(i.URL)
	switch {
	case i.URL == "":
	case strings.Contains(i.URL, "@"):
		// Without the value: there may be a password in it, and cells say the URL on their consoles.
		d.bad("cells.itzo.url", "there is a user name in it: want a URL such as https://example.com/itzo")
	default:
		d.check(err == nil && isURL(i.URL) && u.RawQuery == "" && u.Fragment == "" && len(i.URL) <= 1024, "cells.itzo.url", i.URL,
			"a URL such as https://example.com/itzo, of at most 1024 characters, to which the file's name is appended")
	}
	if len(i.SHA256) == 0 {
		d.bad("cells.itzo.sha256", "there is no value: want the digest by architecture, such as {amd64: …}, or the agent could be any program")
	}
	for _, arch := range slices.Sorted(maps.Keys(i.SHA256)) {
		key := join("cells.itzo.sha256", arch)
		if arch != "amd64" && arch != "arm64" {
			d.bad(key, "%s is no architecture of cells: want amd64 or arm64", quote(arch))
			continue
		}
		d.check(sha256Digits.MatchString(i.SHA256[arch]), key, i.SHA256[arch], "64 lower-case hex digits, as sha256sum prints them")
	}
}

// csiDrivers checks the CSI drivers that cells have.
func (d *decoder) registries(all []Registry) {
	first := map[string]int{}
	for i, r := range all {
		key := fmt.Sprintf("cells.registries[%d]", i)
		d.require(key+".host", r.Host)
		d.check(r.Host == "" || !strings.ContainsAny(r.Host, "/ ") && r.Host != "_default", key+".host", r.Host,
			"the name of an image host such as registry.example.com:5000")
		if n, twice := first[r.Host]; twice && r.Host != "" {
			d.bad(key+".host", "%s is there already: cells.registries[%d] has it", r.Host, n)
		} else {
			first[r.Host] = i
		}
		if (r.ClientCertificateFile == "") != (r.ClientKeyFile == "") {
			d.bad(key, "clientCertificateFile or clientKeyFile is there: want both, or neither")
		}
		if r.PlainHTTP && r.CAFile+r.ClientCertificateFile != "" {
			d.bad(key+".plainHTTP", "true is not valid with caFile or clientCertificateFile: want TLS, or neither of them")
		}
	}
}

// credentialProviders checks what cells' kubelets would not start with.
func (d *decoder) credentialProviders(all []CredentialProvider) {
	list := make([]credentialproviders.Provider, len(all))
	for i, p := range all {
		list[i] = p.Of()
	}
	credentialproviders.Check(list, func(key, problem string) { d.bad("cells.credentialProviders"+key, "%s", problem) })
}

func (d *decoder) csiDrivers(drivers []CSIDriver) {
	first := map[string]int{}
	for i, driver := range drivers {
		key := fmt.Sprintf("cells.csiDrivers[%d]", i)
		d.require(key+".name", driver.Name)
		// 63 is the most that CSI allows.
		d.check(driver.Name == "" || len(driver.Name) <= 63 && len(validation.IsDNS1123Subdomain(driver.Name)) == 0, key+".name", driver.Name,
			"the name of a CSI driver such as nfs.csi.k8s.io")
		if driver.Name == volumes.Driver {
			d.bad(key+".name", "%s is Kip's own, and needs no plugin: want another driver", volumes.Driver)
		}
		d.require(key+".daemonSet", driver.DaemonSet)
		namespace, name, _ := strings.Cut(driver.DaemonSet, "/")
		d.check(driver.DaemonSet == "" || len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0,
			key+".daemonSet", driver.DaemonSet, "a namespace and a name such as kube-system/csi-nfs-node")
		if n, twice := first[driver.Name]; twice && driver.Name != "" {
			d.bad(key+".name", "%s is there already: cells.csiDrivers[%d] has it", driver.Name, n)
		} else {
			first[driver.Name] = i
		}
	}
}

// longestDelay is how long a pod may wait at most for the DaemonSets beside it.
const longestDelay = 10 * time.Minute

// daemonSets checks the DaemonSets that run beside pods.
func (d *decoder) daemonSets(sets []DaemonSet) {
	first := map[[3]string]int{}
	for i, set := range sets {
		key := fmt.Sprintf("cells.daemonSets[%d]", i)
		d.require(key+".namespace", set.Namespace)
		d.check(set.Namespace == "" || len(validation.IsDNS1123Label(set.Namespace)) == 0, key+".namespace", set.Namespace,
			"the name of a namespace")
		d.check(set.Name == "" || len(validation.IsDNS1123Subdomain(set.Name)) == 0, key+".name", set.Name, "the name of a DaemonSet")
		for name, selector := range map[string]string{"selector": set.Selector, "pods": set.Pods} {
			if _, err := labels.Parse(selector); err != nil {
				d.bad(key+"."+name, "%q is not valid: %v: want a label selector such as app=fluent-bit", selector, err)
			}
		}
		d.check(set.MaxDelay >= 0 && set.MaxDelay <= longestDelay, key+".maxDelay", seconds(set.MaxDelay),
			fmt.Sprintf("0 to %v seconds", longestDelay.Seconds()))
		d.check(set.Linger >= 0 && set.Linger <= time.Minute, key+".linger", seconds(set.Linger), "0 to 60 seconds")
		for j, namespace := range set.Namespaces {
			d.check(len(validation.IsDNS1123Label(namespace)) == 0, fmt.Sprintf("%s.namespaces[%d]", key, j), namespace, "the name of a namespace")
		}
		same := [3]string{set.Namespace, set.Name, set.Selector}
		if n, twice := first[same]; twice && set.Namespace != "" {
			d.bad(key, "names the same DaemonSets as cells.daemonSets[%d], which counts: want one of them", n)
		} else {
			first[same] = i
		}
	}
}

// prices checks the operator's own prices.
func (d *decoder) prices(prices []Price) {
	for i, p := range prices {
		key := fmt.Sprintf("cells.prices[%d]", i)
		names := map[string][]string{"instanceTypes": p.InstanceTypes, "regions": p.Regions}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			for j, v := range names[name] {
				at := fmt.Sprintf("%s.%s[%d]", key, name, j)
				d.require(at, v)
				d.check(!strings.ContainsAny(v, ` ,?[]\^/`), at, v, "a name, or of types a pattern such as c5.*")
			}
		}
		says := 0
		for _, n := range []struct {
			name, most string
			q          resource.Quantity
		}{{"discount", "99.99", p.Discount}, {"pricePerHour", "10000", p.PricePerHour}, {"prefer", "1000", p.Prefer}} {
			d.check(n.q.Sign() >= 0 && n.q.Cmp(resource.MustParse(n.most)) <= 0, key+"."+n.name, n.q.String(), "above 0, and at most "+n.most)
			if !n.q.IsZero() {
				says++
			}
		}
		if p.Exclude {
			says++
		}
		if says != 1 {
			d.bad(key, "want one of discount, pricePerHour, prefer and exclude: there are %d", says)
		}
		if p.Spot && p.Discount.IsZero() && p.PricePerHour.IsZero() {
			d.bad(key+".spot", "there is no discount and no pricePerHour that it would be about")
		}
		switch {
		case p.Dedicated && p.Spot:
			d.bad(key+".dedicated", "spot is true too: want only one of them")
		case p.Dedicated && p.Discount.IsZero() && p.PricePerHour.IsZero():
			d.bad(key+".dedicated", "there is no discount and no pricePerHour that it would be about")
		}
	}
}

// budgets checks what namespaces may cost.
func (d *decoder) budgets(budgets []Budget) {
	first := map[string]int{}
	for i, b := range budgets {
		key := fmt.Sprintf("cells.budgets[%d]", i)
		d.require(key+".namespace", b.Namespace)
		d.check(b.Namespace == "" || b.Namespace == "*" || len(validation.IsDNS1123Label(b.Namespace)) == 0, key+".namespace", b.Namespace,
			"the name of a namespace, or *")
		if n, there := first[b.Namespace]; there && b.Namespace != "" {
			d.bad(key+".namespace", "%s is there already: cells.budgets[%d] has it", b.Namespace, n)
		} else {
			first[b.Namespace] = i
		}
		d.check(b.MaxCostPerHour.Sign() >= 0, key+".maxCostPerHour", b.MaxCostPerHour.String(), "0, for no bound, or more")
		d.check(b.MaxCostPerMonth.Sign() >= 0, key+".maxCostPerMonth", b.MaxCostPerMonth.String(), "0, for no bound, or more")
		if b.MaxCostPerHour.IsZero() && b.MaxCostPerMonth.IsZero() {
			d.bad(key, "want maxCostPerHour or maxCostPerMonth: there is no bound")
		}
	}
}

// mostCostLabels is how many labels costs are kept by at most: each makes entries of a day
// larger, and more of them.
const mostCostLabels = 5

// costs checks what costs are kept by.
// servingCertificate checks who signs the certificate of the kubelet port, and who asks.
func (d *decoder) servingCertificate(c ServingCertificate) {
	const signer, requester = "servingCertificate.signerName", "servingCertificate.requester"
	d.check(slices.Contains([]string{"", RequesterNode, RequesterKip}, c.Requester), requester, c.Requester, "node or kip")
	if c.SignerName == "" {
		if c.Requester != "" || c.Approve {
			d.bad(signer, "there is no value, but there are requester or approve: want a signer such as %s",
				certificatesv1.KubeletServingSignerName)
		}
		return
	}
	// As ValidateSignerName in pkg/apis/core/validation of Kubernetes.
	domain, name, _ := strings.Cut(c.SignerName, "/")
	ok := len(validation.IsDNS1123Subdomain(domain)) == 0 && strings.Contains(domain, ".")
	for part := range strings.SplitSeq(name, ".") {
		ok = ok && len(validation.IsDNS1123Subdomain(part)) == 0
	}
	d.check(ok, signer, c.SignerName, "a name such as example.com/serving")
	if domain == "kubernetes.io" {
		d.check(c.SignerName == certificatesv1.KubeletServingSignerName, signer, c.SignerName,
			certificatesv1.KubeletServingSignerName+": the others of that domain sign certificates of clients")
	}
}

func (d *decoder) costs(c Costs) {
	if n := len(c.Labels); n > mostCostLabels {
		d.bad("costs.labels", "there are %d: want at most %d", n, mostCostLabels)
	}
	for i, key := range c.Labels {
		at := fmt.Sprintf("costs.labels[%d]", i)
		d.require(at, key)
		if key == "" {
			continue
		}
		for _, problem := range validation.IsQualifiedName(key) {
			d.bad(at, "%q is no name of a label: %s", key, problem)
		}
		if first := slices.Index(c.Labels, key); first < i {
			d.bad(at, "%s is there already: costs.labels[%d] has it", key, first)
		}
	}
}

// longestKept is the longest time for which pods may have their cells kept.
const longestKept = 7 * 24 * time.Hour

// undoneByUnrestricted reports whether a namespace is granted something that grants.unrestricted grants to all.
func undoneByUnrestricted(n NamespaceGrants) bool {
	return len(n.InstanceProfiles)+len(n.SecurityGroups)+len(n.CloudRoutes)+len(n.InstanceTypes) > 0 ||
		n.AllowMetadata || n.PublicAddress || n.Dedicated || n.DaemonSetMachines || !n.MaxVolumeSize.IsZero() || !n.MaxPricePerHour.IsZero()
}

// grants checks what namespaces may ask for.
func (d *decoder) grants(g Grants) {
	d.check(g.MaxPricePerHour.Sign() >= 0, "cells.grants.maxPricePerHour", g.MaxPricePerHour.String(), "0, for no bound, or more")
	size := func(key string, q resource.Quantity) {
		d.check(q.Sign() >= 0 && q.Value()%(1<<30) == 0, key+".maxVolumeSize", q.String(), "0, for no bound, or a whole number of Gi")
	}
	size("cells.grants", g.MaxVolumeSize)
	keep := func(key string, t time.Duration) {
		d.check(t >= 0 && t <= longestKept, key+".maxKeepFailed", fmt.Sprint(t.Seconds()), "0, for not at all, or seconds, at most 604800")
	}
	keep("cells.grants", g.MaxKeepFailed)
	d.check(g.MaxKeptCells >= 1, "cells.grants.maxKeptCells", fmt.Sprint(g.MaxKeptCells), "at least 1; maxKeepFailed: 0 keeps none")
	if g.Unrestricted && (slices.ContainsFunc(g.Namespaces, undoneByUnrestricted) || !g.MaxPricePerHour.IsZero() ||
		d.has("cells.grants.maxVolumeSize")) {
		d.bad("cells.grants.unrestricted", "true is not valid beside bounds, or grants of cells.grants.namespaces other than "+
			"besidePods, hostSysctls, hostModules, unsafeSysctls and maxKeepFailed, which it would undo: want only one of them")
	}
	d.unsafeSysctls("cells.grants", g.UnsafeSysctls)
	for i, n := range g.Namespaces {
		key := fmt.Sprintf("cells.grants.namespaces[%d]", i)
		d.require(key+".namespace", n.Namespace)
		d.unsafeSysctls(key, n.UnsafeSysctls)
		d.check(n.Namespace == "" || n.Namespace == "*" || len(validation.IsDNS1123Label(n.Namespace)) == 0, key+".namespace", n.Namespace,
			"the name of a namespace, or *")
		for name, values := range map[string][]string{"instanceProfiles": n.InstanceProfiles, "securityGroups": n.SecurityGroups,
			"instanceTypes": n.InstanceTypes, "hostSysctls": n.HostSysctls, "hostModules": n.HostModules} {
			for j, v := range values {
				at := fmt.Sprintf("%s.%s[%d]", key, name, j)
				d.require(at, v)
				d.check(!strings.Contains(strings.TrimSuffix(v, "*"), "*"), at, v, "a value, or the beginning of one and a * at its end")
			}
		}
		price := n.MaxPricePerHour
		d.check(price.IsZero() || price.Cmp(g.MaxPricePerHour) > 0 && !g.MaxPricePerHour.IsZero(), key+".maxPricePerHour", price.String(),
			"more than cells.grants.maxPricePerHour, which bounds all namespaces")
		disk := n.MaxVolumeSize
		size(key, disk)
		d.check(disk.IsZero() || disk.Cmp(g.MaxVolumeSize) > 0 && !g.MaxVolumeSize.IsZero(), key+".maxVolumeSize", disk.String(),
			"more than cells.grants.maxVolumeSize, which bounds all namespaces")
		keep(key, n.MaxKeepFailed)
		d.check(n.MaxKeepFailed == 0 || n.MaxKeepFailed > g.MaxKeepFailed, key+".maxKeepFailed", fmt.Sprint(n.MaxKeepFailed.Seconds()),
			"more than cells.grants.maxKeepFailed, which all namespaces have")
	}
}

// unsafeSysctls checks patterns of sysctls as a kubelet does with its allowedUnsafeSysctls.
func (d *decoder) unsafeSysctls(key string, patterns []string) {
	for i, p := range patterns {
		d.check(sysctls.IsNamespaced(p) && !strings.Contains(strings.TrimSuffix(p, "*"), "*"),
			fmt.Sprintf("%s.unsafeSysctls[%d]", key, i), p,
			"a namespaced sysctl, or the beginning of some and a *: kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* or net.*, or within these")
	}
}

// silence is for how long nothing may be heard of a healthy cell: its kubelet renews
// its lease every 10 seconds (a quarter of the 40 that the lease lasts), and may be late.
const silence = 15 * time.Second

// standbyCells checks the pools of standby cells.
func (d *decoder) standbyCells(c *Config) {
	pools := map[StandbyCells]int{}
	for i, s := range c.Cells.StandbyCells {
		key := fmt.Sprintf("cells.standbyCells[%d]", i)
		d.require(key+".instanceType", s.InstanceType)
		d.check(s.Count >= 0, key+".count", fmt.Sprint(s.Count), "0 or more")
		if s.Spot && s.Dedicated {
			d.bad(key+".dedicated", "spot is true too: want only one of them")
		}
		if s.Spot && s.Stopped {
			d.bad(key+".stopped", "spot is true too: want only one of them")
		}
		in, onHost := c.Cloud.hostZones()
		switch {
		case s.Zone == "":
		case onHost != nil:
			d.check(slices.Contains(onHost, s.Zone), key+".zone", s.Zone, "one of "+in+": "+strings.Join(onHost, ", "))
		case c.Cloud.GCE != nil && c.Cloud.GCE.Zone != "":
			d.check(s.Zone == c.Cloud.GCE.Zone, key+".zone", s.Zone, c.Cloud.GCE.Zone+", which is cloud.gce.zone")
		}
		// Which of two counts is meant, or their sum, cannot be known.
		pool := s
		pool.Count = 0
		if first, twice := pools[pool]; twice && s.InstanceType != "" {
			d.bad(key, "differs from cells.standbyCells[%d] in nothing but the count: want one pool, with the sum of their counts", first)
		} else {
			pools[pool] = i
		}
	}
}

func seconds(t time.Duration) string { return fmt.Sprint(t.Seconds()) }

func (d *decoder) kubelet(k *Kubelet) {
	for name, q := range map[corev1.ResourceName]*resource.Quantity{corev1.ResourceCPU: k.CPU, corev1.ResourceMemory: k.Memory,
		corev1.ResourcePods: k.Pods} {
		switch key := "kubelet." + string(name); {
		case q == nil:
		case d.has("kubelet.capacity." + string(name)):
			d.bad(key, "kubelet.capacity.%s is there too: want only that", name)
		case slices.Contains(k.AutoCapacity, name):
			d.bad(key, "kubelet.capacity is auto: want kubelet.capacity.%s in its place, and auto for the others", name)
		case q.Sign() < 0:
			d.bad(key, "%q is not valid: want 0 or more", q.String())
		default:
			k.Capacity[name] = *q
		}
	}
	d.capacity("kubelet.capacity", k.Capacity)
	d.labels("kubelet.labels", k.Labels)
}

// otherClouds warns of keys that mean nothing to the cloud that is configured.
func (d *decoder) otherClouds(cloud string) {
	for _, k := range keys {
		if k.clouds != "" && cloud != "" && d.has(k.path) && !slices.Contains(strings.Split(k.clouds, ","), cloud) {
			d.warn(k.path, "has no effect with cloud.%s", cloud)
		}
	}
}

// files checks that the files which the configuration names can be read.
func (d *decoder) files(c *Config) {
	names := map[string]string{
		"cells.cloudInitFile":      c.Cells.CloudInitFile,
		"etcd.internal.configFile": c.Etcd.Internal.ConfigFile,
		"etcd.client.certFile":     c.Etcd.Client.CertFile,
		"etcd.client.keyFile":      c.Etcd.Client.KeyFile,
		"etcd.client.caFile":       c.Etcd.Client.CAFile,
	}
	for i, r := range c.Cells.Registries {
		key := fmt.Sprintf("cells.registries[%d].", i)
		names[key+"caFile"], names[key+"clientCertificateFile"], names[key+"clientKeyFile"] = r.CAFile, r.ClientCertificateFile, r.ClientKeyFile
	}
	for i, name := range c.Etcd.EncryptionKeyFiles {
		names[fmt.Sprintf("etcd.encryptionKeyFiles[%d]", i)] = name
	}
	if c.Cloud.GCE != nil {
		names["cloud.gce.credentialsFile"] = c.Cloud.GCE.CredentialsFile
	}
	for key, name := range names {
		if name == "" {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			d.bad(key, "want a file that can be read: %v", err)
			continue
		}
		f.Close()
	}
}
