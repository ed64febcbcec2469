package installation

// masked is where the link of a unit leads that systemd must not start.
const masked = "/dev/null"

// leavesAddresses are what keeps other programs from giving the machine the pod's address, which EC2 tells it as a
// secondary one of its interface. The kernel would then keep what is for the pod.
//
// cloud-init adds all secondary addresses to the interface by default. Source: cloud-init, "Amazon EC2" data source,
// apply_full_imds_network_config. amazon-ec2-net-utils, of Amazon Linux 2023 and Debian, does so at the start and again
// each minute; udev starts its units, so that they have to be masked. What DHCP says is systemd-networkd's business, not
// theirs. Source: amazonlinux/amazon-ec2-net-utils, create_ipv4_aliases in lib/lib.sh, udev/99-vpc-policy-routes.rules.
var leavesAddresses = map[string]item{
	"etc/cloud/cloud.cfg.d/99-kip-addresses.cfg": {content: cloudConfig, mode: 0o644},

	"etc/systemd/system/policy-routes@.service":         {link: masked},
	"etc/systemd/system/refresh-policy-routes@.service": {link: masked},
	"etc/systemd/system/refresh-policy-routes@.timer":   {link: masked},
}

const cloudConfig = `# Written by itzo install: the pod of a Kip cell has the secondary address of the machine's interface.
datasource:
  Ec2:
    apply_full_imds_network_config: false
`
