package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/atomicfile"
	"github.com/elotl/kip/internal/netdump"
)

// podFile, beside the gates, has the UID of the cell's pod where other pods may run beside it.
const podFile = "pod-uid"

// NamePod notes the UID of the cell's pod, by which the plugin knows it from pods that run beside it; "" where
// none do.
func NamePod(gateDir, uid string) error {
	path := filepath.Join(gateDir, podFile)
	if uid == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget the UID of the cell's pod: %w", err)
		}
		return nil
	}
	if b, err := os.ReadFile(path); err == nil && string(b) == uid {
		return nil
	}
	if err := os.MkdirAll(gateDir, 0o700); err != nil {
		return fmt.Errorf("note the UID of the cell's pod: %w", err)
	}
	if err := atomicfile.Write(path, []byte(uid), 0o600); err != nil {
		return fmt.Errorf("note the UID of the cell's pod: %w", err)
	}
	return nil
}

// NamedPod returns the UID that NamePod has noted; "" for none.
func NamedPod(gateDir string) string {
	uid, err := os.ReadFile(filepath.Join(gateDir, podFile))
	if err != nil {
		return ""
	}
	return string(uid)
}

// isBeside reports whether a pod, as the runtime names it in CNI_ARGS, runs beside the cell's pod.
func isBeside(gateDir, args string) (bool, error) {
	own, err := os.ReadFile(filepath.Join(gateDir, podFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the UID of the cell's pod: %w", err)
	}
	for arg := range strings.SplitSeq(args, ";") {
		if uid, is := strings.CutPrefix(arg, "K8S_POD_UID="); is && uid != "" {
			return uid != string(own), nil
		}
	}
	return false, fmt.Errorf("CNI_ARGS has no K8S_POD_UID: which pod gets the network is not known")
}

// besideVeth names the cell's end of the veth of a container beside the cell's pod. The firewall's rules for the pod
// are for interfaces of other names.
func besideVeth(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return "dset" + hex.EncodeToString(sum[:5])
}

// connectBeside gives a pod an address of the machine alone.
func connectBeside(args *skel.CmdArgs, c conf) (*current.Result, error) {
	// Two at once would take the same address.
	lock, err := os.OpenFile(filepath.Join(c.GateDir, "beside.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the addresses of pods beside the cell's: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the addresses of pods beside the cell's: %w", err)
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	return connectBy(args, conf{NetConf: c.NetConf, PodIP: address, NodeIP: c.NodeIP}, besideVeth(args.ContainerID, args.IfName))
}

// freeAddress returns the first address of agentapi.BesideNetwork to which no route leads.
func freeAddress() (netip.Addr, error) {
	routes, err := netdump.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, unix.AF_INET) })
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list the routes to pods beside the cell's: %w", err)
	}
	taken := map[netip.Addr]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			ip, _ := netip.AddrFromSlice(r.Dst.IP)
			taken[ip.Unmap()] = true
		}
	}
	network := agentapi.BesideNetwork
	for ip := network.Addr().Next(); network.Contains(ip.Next()); ip = ip.Next() { // neither the first nor the last
		if !taken[ip] {
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all addresses of %s are taken", network)
}

// there reports whether the machine has a device.
func there(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}
