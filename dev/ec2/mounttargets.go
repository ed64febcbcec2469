package ec2

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// MountTarget is by what the instances of a zone reach a file system.
type MountTarget struct {
	ID, FileSystem, Subnet, IP string
	// Groups are the security groups of its interface, which say who reaches port 2049 of it.
	Groups []string
	Made   time.Time
}

// mountTargets are those of all file systems.
type mountTargets struct {
	*base

	all []MountTarget
}

// All are those that there are.
func (m *mountTargets) All() []MountTarget {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

// mountTargetJSON is one of an answer (Amazon EFS API reference, "MountTargetDescription").
type mountTargetJSON struct {
	OwnerID        string `json:"OwnerId"`
	MountTargetID  string `json:"MountTargetId"`
	FileSystemID   string `json:"FileSystemId"`
	SubnetID       string `json:"SubnetId"`
	VPCID          string `json:"VpcId"`
	Zone           string `json:"AvailabilityZoneName"`
	IPAddress      string `json:"IpAddress"`
	LifeCycleState string `json:"LifeCycleState"`
}

func (m *fileSystems) shownMountTarget(t MountTarget) mountTargetJSON {
	n := slices.IndexFunc(m.networks.subnets, func(s Subnet) bool { return s.ID == t.Subnet })
	return mountTargetJSON{
		OwnerID:        m.cfg.Account,
		MountTargetID:  t.ID,
		FileSystemID:   t.FileSystem,
		SubnetID:       t.Subnet,
		VPCID:          m.networks.subnets[n].VPC,
		Zone:           m.networks.subnets[n].Zone,
		IPAddress:      t.IP,
		LifeCycleState: m.efsState(t.Made),
	}
}

// maxTargetGroups are those of a mount target (Amazon EFS API reference, "CreateMountTarget").
const maxTargetGroups = 5

// createMountTarget makes one: in each zone a file system has at most one, and all are in one VPC. Source: Amazon EFS API reference,
// "CreateMountTarget".
func (m *fileSystems) createMountTarget(body io.Reader) (any, error) {
	in, err := efsBody[struct {
		FileSystemID   string   `json:"FileSystemId"`
		SubnetID       string   `json:"SubnetId"`
		SecurityGroups []string `json:"SecurityGroups"`
	}](body)
	if err != nil {
		return nil, err
	}
	of, err := m.fileSystem(in.FileSystemID)
	if err != nil {
		return nil, err
	}
	if state := m.efsState(m.all[of].Made); state != "available" {
		return nil, efsError(http.StatusConflict, "IncorrectFileSystemLifeCycleState", "File system '%s' is %s, not available",
			in.FileSystemID, state)
	}
	subnetOf := func(id string) int {
		return slices.IndexFunc(m.networks.subnets, func(s Subnet) bool { return s.ID == id })
	}
	n := subnetOf(in.SubnetID)
	if n < 0 {
		return nil, bad("SubnetNotFound", "The subnet ID '%s' does not exist", in.SubnetID)
	}
	subnet := m.networks.subnets[n]
	if len(in.SecurityGroups) > maxTargetGroups {
		return nil, bad("SecurityGroupLimitExceeded", "A mount target has at most %d security groups", maxTargetGroups)
	}
	for _, id := range in.SecurityGroups {
		if g := m.groups.groupAt(id); g < 0 || m.groups.all[g].VPC != subnet.VPC {
			return nil, bad("SecurityGroupNotFound", "The security group '%s' does not exist in VPC '%s'", id, subnet.VPC)
		}
	}
	for _, t := range m.mountTargets.all {
		if other := m.networks.subnets[subnetOf(t.Subnet)]; t.FileSystem == in.FileSystemID &&
			(other.Zone == subnet.Zone || other.VPC != subnet.VPC) {
			return nil, efsError(http.StatusConflict, "MountTargetConflict", "mount target already exists in this AZ, or in another VPC: '%s'", t.ID)
		}
	}
	m.made++
	t := MountTarget{
		ID:         fmt.Sprintf("fsmt-%017x", m.made),
		FileSystem: in.FileSystemID,
		Subnet:     in.SubnetID,
		IP:         fmt.Sprintf("10.255.%d.%d", m.made/250, 1+m.made%250),
		Groups:     in.SecurityGroups,
		Made:       m.model.Now(),
	}
	m.mountTargets.all = append(m.mountTargets.all, t)
	return m.shownMountTarget(t), nil
}

func (m *fileSystems) mountTarget(id string) (int, error) {
	n := slices.IndexFunc(m.mountTargets.all, func(t MountTarget) bool { return t.ID == id })
	if n < 0 {
		return n, efsError(http.StatusNotFound, "MountTargetNotFound", "Mount target '%s' does not exist.", id)
	}
	return n, nil
}

// describeMountTargets shows those of a file system, or one.
func (m *fileSystems) describeMountTargets(fileSystem, id string) (any, error) {
	if (fileSystem == "") == (id == "") {
		return nil, bad("BadRequest", "One of FileSystemId and MountTargetId is needed")
	}
	if _, err := m.fileSystem(fileSystem); fileSystem != "" && err != nil {
		return nil, err
	}
	if _, err := m.mountTarget(id); id != "" && err != nil {
		return nil, err
	}
	all := []mountTargetJSON{}
	for _, t := range m.mountTargets.all {
		if t.FileSystem == fileSystem || t.ID == id {
			all = append(all, m.shownMountTarget(t))
		}
	}
	return map[string]any{"MountTargets": all}, nil
}

func (m *fileSystems) mountTargetGroups(id string) (any, error) {
	n, err := m.mountTarget(id)
	if err != nil {
		return nil, err
	}
	return map[string]any{"SecurityGroups": m.mountTargets.all[n].Groups}, nil
}

func (m *fileSystems) deleteMountTarget(id string) error {
	n, err := m.mountTarget(id)
	if err == nil {
		m.mountTargets.all = slices.Delete(m.mountTargets.all, n, n+1)
	}
	return err
}
