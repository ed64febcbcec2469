package boot

// Packages are Debian's packages of the image, as debian.Resolve takes them. What a
// program needs and none of these has is an error of the build, which names it.
var Packages = []string{
	kernelPackage + "=depends", stubPackage,
	"apparmor", "busybox-static", "ca-certificates", "e2fsprogs", "libc6", "mount", "nfs-common", "nftables", "util-linux", "xfsprogs",
	// Libraries of these.
	"libblkid1", "libcap2", "libcom-err2", "libedit2", "libext2fs2t64", "libgmp10", "libgssapi-krb5-2", "libinih1", "libjansson4",
	"libk5crypto3", "libkeyutils1", "libkrb5-3", "libkrb5support0", "libmnl0", "libmount1", "libnftables1", "libnftnl11",
	"libpcre2-8-0", "libselinux1", "libsmartcols1", "libtinfo6", "libtirpc-common", "libtirpc3t64", "liburcu8t64", "libuuid1",
	"libxtables12", "libbsd0", "libmd0", "libss2", "libudev1",
}

const (
	kernelPackage = "linux-image-cloud-ARCH"
	stubPackage   = "systemd-boot-efi"
)

// programs of Debian's in the root, by the path that is theirs there and in their
// package. Kubelets run all but resize2fs and xfs_growfs for the disks of volumes, and
// these two when one grows.
var programs = []string{
	"usr/bin/mount", "usr/bin/umount", "usr/sbin/blkid", "usr/sbin/fsck", "usr/sbin/e2fsck", "usr/sbin/mke2fs", "usr/sbin/resize2fs",
	"usr/sbin/mkfs.xfs", "usr/sbin/xfs_growfs", "usr/sbin/xfs_repair", "usr/sbin/fsck.xfs", "usr/sbin/mount.nfs", "usr/sbin/nft",
	"usr/bin/busybox",
	// containerd loads its default profile by it, and takes AppArmor for absent without it. It is found as /sbin/apparmor_parser.
	"usr/sbin/apparmor_parser",
}

// configuration of those programs. A name with a slash at the end is a folder with all below it.
var configuration = []string{
	"etc/mke2fs.conf", "etc/netconfig",
	// What profiles of AppArmor include: containerd's own, and those that a pod names and somebody loads.
	"etc/apparmor/parser.conf", "etc/apparmor.d/abi/", "etc/apparmor.d/abstractions/", "etc/apparmor.d/tunables/",
	"usr/share/apparmor-features/features", // of profiles that name no abi; parser.conf names it
}

// links are names that something in the root is called by, or looked for.
var links = map[string]string{
	"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "../run", "etc/mtab": "/proc/self/mounts",
	"usr/sbin/init": "../bin/itzo", "usr/sbin/poweroff": "../bin/itzo", "usr/sbin/reboot": "../bin/itzo",
	"usr/bin/kubelet": "itzo-components", "usr/bin/containerd": "itzo-containerd",
	"usr/sbin/mkfs.ext3": "mke2fs", "usr/sbin/mkfs.ext4": "mke2fs", "usr/sbin/fsck.ext3": "e2fsck", "usr/sbin/fsck.ext4": "e2fsck",
	"usr/sbin/mount.nfs4": "mount.nfs",
}

// noApplets are busybox' that a cell must not have: nobody logs in, itzo alone says
// when the machine ends, and nothing serves but what a pod runs. Busybox is there for
// the commands that a user data document may have.
var noApplets = map[string]bool{
	"adduser": true, "addgroup": true, "chpasswd": true, "deluser": true, "delgroup": true, "dnsd": true, "ftpd": true, "fakeidentd": true,
	"getty": true, "halt": true, "httpd": true, "inetd": true, "init": true, "linuxrc": true, "login": true, "passwd": true,
	"su": true, "sulogin": true, "syslogd": true, "tcpsvd": true, "telnetd": true, "tftpd": true, "udhcpd": true, "udpsvd": true,
	"vlock": true,
}

// use is some of the kernel's modules, and why a cell has them.
type use struct {
	why string
	// early modules are in the first file system as well, since the root cannot be
	// reached without them.
	early bool
	// names are modules or, with a slash at the end, folders below kernel/.
	names []string
	// archs has the architectures that have these; nil for all.
	archs []string
}

// uses are all modules of an image, but for those that these need. What is not here
// the kernel cannot load on a cell, unless root there brings it along.
var uses = []use{
	{why: "disks of KVM and of Google Cloud", early: true, names: []string{"virtio_blk", "virtio_scsi", "virtio_mmio", "sd_mod"}},
	{why: "disks of Azure, also by PCI", early: true, names: []string{"hv_vmbus", "hv_storvsc", "pci-hyperv"}},
	{why: "disks of EC2's older types and of Xen", early: true, names: []string{"xen-blkfront"}, archs: []string{"amd64"}},
	{why: "disks of other hypervisors", early: true, names: []string{"ahci"}},
	{why: "the root", early: true, names: []string{"erofs", "overlay"}},
	{why: "network of KVM", names: []string{"virtio_net"}},
	{why: "network of EC2", names: []string{"ena"}},
	{why: "network of EC2's older types and of Xen", names: []string{"ixgbevf", "xen-netfront"}, archs: []string{"amd64"}},
	{why: "network of Google Cloud", names: []string{"gve"}},
	{why: "network of Azure, also by PCI", names: []string{"hv_netvsc", "mlx4_core", "mlx4_en", "mlx5_core", "mana"}},
	{why: "the power button", names: []string{"button", "evdev"}},
	{why: "random numbers of the host", names: []string{"virtio-rng"}},
	{why: "memory that goes back to the host", names: []string{"virtio_balloon"}},
	{why: "Azure's clock and its order to end", names: []string{"hv_utils"}},
	{why: "the clock of KVM", names: []string{"ptp_kvm"}, archs: []string{"amd64"}},
	{why: "user data of QEMU", names: []string{"qemu_fw_cfg"}},
	{
		why:   "user data on a NoCloud disk",
		names: []string{"isofs", "vfat", "sr_mod", "nls_ascii", "nls_cp437", "nls_iso8859-1", "nls_utf8"},
	},
	{
		why:   "file systems of volumes",
		names: []string{"xfs", "nfs", "nfsv3", "nfsv4", "fs/fuse/", "loop", "dm-mod", "dm-crypt", "dm-thin-pool"},
	},
	{
		why:   "pods' network devices",
		names: []string{"veth", "bridge", "br_netfilter", "tun", "dummy", "8021q", "macvlan", "ipvlan", "vxlan"},
	},
	{
		why:   "Services, NetworkPolicies, hostPorts, and what pods with the right write of their own",
		names: []string{"net/netfilter/", "net/ipv4/netfilter/", "net/ipv6/netfilter/"},
	},
	{
		why:   "traffic control of pods' bandwidth",
		names: []string{"sch_tbf", "sch_ingress", "sch_htb", "sch_fq", "ifb", "cls_u32", "act_mirred"},
	},
	{
		why:   "sockets that pods may open",
		names: []string{"sctp", "vsock", "tls", "tcp_bbr", "inet_diag", "tcp_diag", "udp_diag", "unix_diag"},
	},
	{why: "the host's socket to a machine", names: []string{"vmw_vsock_virtio_transport"}},
}

// arguments of the kernel. kip.root is added.
//
// A kernel that panics starts the machine again, and init then refuses to begin a
// second life and switches it off: so an end that nobody ordered is seen by the cloud
// at once. Little is said on the console, since a serial line is slow. An emulated
// machine on a busy host fails the test of its timer (no_timer_check).
var arguments = map[string]string{
	"amd64": "console=tty0 console=ttyS0,115200 loglevel=4 panic=1 no_timer_check nvme_core.io_timeout=4294967295 net.ifnames=0",
	"arm64": "loglevel=4 panic=1 nvme_core.io_timeout=4294967295 net.ifnames=0",
}
