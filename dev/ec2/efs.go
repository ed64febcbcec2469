package ec2

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// efsPath is where EFS' REST API is. Source: Amazon EFS API reference.
const efsPath = "/2015-02-01"

// FileSystem is one of Amazon EFS. Nothing is stored in it: no machine mounts it.
type FileSystem struct {
	ID, Token string
	Encrypted bool
	Tags      map[string]string
	Made      time.Time
}

// MountTarget is by what the instances of a zone reach a file system.
type MountTarget struct {
	ID, FileSystem, Subnet, IP string
	// Groups are the security groups of its interface, which say who reaches port 2049 of it.
	Groups []string
	Made   time.Time
}

// FileSystems are those that there are.
func (m *Model) FileSystems() []FileSystem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.fileSystems)
}

// MountTargets are those that there are.
func (m *Model) MountTargets() []MountTarget {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.mountTargets)
}

// efsState is the state of what was made then.
func (m *Model) efsState(made time.Time) string {
	if m.Now().Sub(made) < m.cfg.FileSystemStep {
		return "creating"
	}
	return "available"
}

type efsTag struct{ Key, Value string }

// fileSystemJSON is one of an answer (Amazon EFS API reference, "FileSystemDescription").
type fileSystemJSON struct {
	OwnerID        string  `json:"OwnerId"`
	CreationToken  string  `json:"CreationToken"`
	FileSystemID   string  `json:"FileSystemId"`
	ARN            string  `json:"FileSystemArn"`
	CreationTime   float64 `json:"CreationTime"`
	LifeCycleState string  `json:"LifeCycleState"`
	Name           string  `json:"Name,omitempty"`
	MountTargets   int     `json:"NumberOfMountTargets"`
	SizeInBytes    struct {
		Value           int64
		ValueInIA       int64
		ValueInStandard int64
	} `json:"SizeInBytes"`
	PerformanceMode string   `json:"PerformanceMode"`
	ThroughputMode  string   `json:"ThroughputMode"`
	Encrypted       bool     `json:"Encrypted"`
	Tags            []efsTag `json:"Tags"`
}

// shownFileSystem is asked for with the model locked.
func (m *Model) shownFileSystem(f FileSystem) fileSystemJSON {
	out := fileSystemJSON{
		OwnerID:         m.cfg.Account,
		CreationToken:   f.Token,
		FileSystemID:    f.ID,
		ARN:             m.arnOf("elasticfilesystem", m.cfg.Region, m.cfg.Account, "file-system/"+f.ID),
		CreationTime:    float64(f.Made.UnixMilli()) / 1000,
		LifeCycleState:  m.efsState(f.Made),
		Name:            f.Tags["Name"],
		PerformanceMode: "generalPurpose",
		ThroughputMode:  "bursting",
		Encrypted:       f.Encrypted,
		Tags:            []efsTag{},
	}
	for _, t := range m.mountTargets {
		if t.FileSystem == f.ID {
			out.MountTargets++
		}
	}
	for _, key := range sortedKeys(f.Tags) {
		out.Tags = append(out.Tags, efsTag{key, f.Tags[key]})
	}
	return out
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

func (m *Model) shownMountTarget(t MountTarget) mountTargetJSON {
	n := slices.IndexFunc(m.subnets, func(s Subnet) bool { return s.ID == t.Subnet })
	return mountTargetJSON{
		OwnerID:        m.cfg.Account,
		MountTargetID:  t.ID,
		FileSystemID:   t.FileSystem,
		SubnetID:       t.Subnet,
		VPCID:          m.subnets[n].VPC,
		Zone:           m.subnets[n].Zone,
		IPAddress:      t.IP,
		LifeCycleState: m.efsState(t.Made),
	}
}

// serveEFS answers a call of Amazon EFS.
func (m *Model) serveEFS(w http.ResponseWriter, r *http.Request) {
	kind, below, _ := strings.Cut(strings.Trim(strings.TrimPrefix(r.URL.Path, efsPath), "/"), "/")
	id, of, _ := strings.Cut(below, "/")
	asked := r.URL.Query()
	action, resource := "", "*"
	var do func() (any, error)
	switch r.Method + " " + kind + "/" + of {
	case "POST file-systems/":
		action, do = "CreateFileSystem", func() (any, error) { return m.createFileSystem(r.Body) }
	case "GET file-systems/":
		action, do = "DescribeFileSystems", func() (any, error) {
			return m.describeFileSystems(asked.Get("FileSystemId"), asked.Get("CreationToken"))
		}
	case "DELETE file-systems/":
		action, do = "DeleteFileSystem", func() (any, error) { return nil, m.deleteFileSystem(id) }
		resource = m.arnOf("elasticfilesystem", m.cfg.Region, m.cfg.Account, "file-system/"+id)
	case "POST mount-targets/":
		action, do = "CreateMountTarget", func() (any, error) { return m.createMountTarget(r.Body) }
	case "GET mount-targets/":
		action, do = "DescribeMountTargets", func() (any, error) {
			return m.describeMountTargets(asked.Get("FileSystemId"), asked.Get("MountTargetId"))
		}
	case "GET mount-targets/security-groups":
		action, do = "DescribeMountTargetSecurityGroups", func() (any, error) { return m.mountTargetGroups(id) }
	case "DELETE mount-targets/":
		action, do = "DeleteMountTarget", func() (any, error) { return nil, m.deleteMountTarget(id) }
	}
	m.serveJSON(w, r, jsonService{name: "elasticfilesystem", message: "Message"}, action, resource, func(*request) (any, error) {
		if do == nil {
			return nil, efsError(http.StatusNotFound, "UnknownOperationException",
				"The model makes, shows and deletes file systems and mount targets")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		return do()
	})
}

// efsBody reads the body of a call, which has nothing else.
func efsBody[In any](body io.Reader) (in In, err error) {
	read := json.NewDecoder(body)
	read.DisallowUnknownFields()
	if err := read.Decode(&in); err != nil {
		return in, bad("BadRequest", "%v", err)
	}
	return in, nil
}

func efsError(status int, code, format string, args ...any) error {
	return &apiError{status, code, fmt.Sprintf(format, args...)}
}

// createFileSystem makes one. Source: Amazon EFS API reference, "CreateFileSystem".
func (m *Model) createFileSystem(body io.Reader) (any, error) {
	in, err := efsBody[struct {
		CreationToken, PerformanceMode, ThroughputMode string
		Encrypted                                      bool
		Tags                                           []efsTag
	}](body)
	switch {
	case err != nil:
		return nil, err
	case in.CreationToken == "" || len(in.CreationToken) > 64:
		return nil, bad("BadRequest", "The creation token has 1 to 64 characters")
	case cmp.Or(in.PerformanceMode, "generalPurpose") != "generalPurpose" || cmp.Or(in.ThroughputMode, "bursting") != "bursting":
		return nil, bad("BadRequest", "The model has the performance mode generalPurpose and the throughput mode bursting")
	}
	if n := slices.IndexFunc(m.fileSystems, func(f FileSystem) bool { return f.Token == in.CreationToken }); n >= 0 {
		return nil, efsError(http.StatusConflict, "FileSystemAlreadyExists",
			"File system '%s' already exists with creation token '%s'", m.fileSystems[n].ID, in.CreationToken)
	}
	m.made++
	f := FileSystem{
		ID:        fmt.Sprintf("fs-%017x", m.made),
		Token:     in.CreationToken,
		Encrypted: in.Encrypted,
		Tags:      map[string]string{},
		Made:      m.Now(),
	}
	for _, t := range in.Tags {
		f.Tags[t.Key] = t.Value
	}
	m.fileSystems = append(m.fileSystems, f)
	return answered{http.StatusCreated, m.shownFileSystem(f)}, nil
}

func (m *Model) fileSystem(id string) (int, error) {
	n := slices.IndexFunc(m.fileSystems, func(f FileSystem) bool { return f.ID == id })
	if n < 0 {
		return n, efsError(http.StatusNotFound, "FileSystemNotFound", "File system '%s' does not exist.", id)
	}
	return n, nil
}

func (m *Model) describeFileSystems(id, token string) (any, error) {
	all := []fileSystemJSON{}
	for _, f := range m.fileSystems {
		if (id == "" || f.ID == id) && (token == "" || f.Token == token) {
			all = append(all, m.shownFileSystem(f))
		}
	}
	if _, err := m.fileSystem(id); id != "" && err != nil {
		return nil, err
	}
	return map[string]any{"FileSystems": all}, nil
}

// deleteFileSystem refuses one that has mount targets. Source: Amazon EFS API reference, "DeleteFileSystem".
func (m *Model) deleteFileSystem(id string) error {
	n, err := m.fileSystem(id)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(m.mountTargets, func(t MountTarget) bool { return t.FileSystem == id }) {
		return efsError(http.StatusConflict, "FileSystemInUse", "File system '%s' has mount targets", id)
	}
	m.fileSystems = slices.Delete(m.fileSystems, n, n+1)
	return nil
}

// maxTargetGroups are those of a mount target (Amazon EFS API reference, "CreateMountTarget").
const maxTargetGroups = 5

// createMountTarget makes one: in each zone a file system has at most one, and all are in one VPC. Source: Amazon EFS API reference,
// "CreateMountTarget".
func (m *Model) createMountTarget(body io.Reader) (any, error) {
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
	if state := m.efsState(m.fileSystems[of].Made); state != "available" {
		return nil, efsError(http.StatusConflict, "IncorrectFileSystemLifeCycleState", "File system '%s' is %s, not available",
			in.FileSystemID, state)
	}
	subnetOf := func(id string) int { return slices.IndexFunc(m.subnets, func(s Subnet) bool { return s.ID == id }) }
	n := subnetOf(in.SubnetID)
	if n < 0 {
		return nil, bad("SubnetNotFound", "The subnet ID '%s' does not exist", in.SubnetID)
	}
	subnet := m.subnets[n]
	if len(in.SecurityGroups) > maxTargetGroups {
		return nil, bad("SecurityGroupLimitExceeded", "A mount target has at most %d security groups", maxTargetGroups)
	}
	for _, id := range in.SecurityGroups {
		if g := m.groupAt(id); g < 0 || m.groups[g].VPC != subnet.VPC {
			return nil, bad("SecurityGroupNotFound", "The security group '%s' does not exist in VPC '%s'", id, subnet.VPC)
		}
	}
	for _, t := range m.mountTargets {
		if other := m.subnets[subnetOf(t.Subnet)]; t.FileSystem == in.FileSystemID && (other.Zone == subnet.Zone || other.VPC != subnet.VPC) {
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
		Made:       m.Now(),
	}
	m.mountTargets = append(m.mountTargets, t)
	return m.shownMountTarget(t), nil
}

func (m *Model) mountTarget(id string) (int, error) {
	n := slices.IndexFunc(m.mountTargets, func(t MountTarget) bool { return t.ID == id })
	if n < 0 {
		return n, efsError(http.StatusNotFound, "MountTargetNotFound", "Mount target '%s' does not exist.", id)
	}
	return n, nil
}

// describeMountTargets shows those of a file system, or one.
func (m *Model) describeMountTargets(fileSystem, id string) (any, error) {
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
	for _, t := range m.mountTargets {
		if t.FileSystem == fileSystem || t.ID == id {
			all = append(all, m.shownMountTarget(t))
		}
	}
	return map[string]any{"MountTargets": all}, nil
}

func (m *Model) mountTargetGroups(id string) (any, error) {
	n, err := m.mountTarget(id)
	if err != nil {
		return nil, err
	}
	return map[string]any{"SecurityGroups": m.mountTargets[n].Groups}, nil
}

func (m *Model) deleteMountTarget(id string) error {
	n, err := m.mountTarget(id)
	if err == nil {
		m.mountTargets = slices.Delete(m.mountTargets, n, n+1)
	}
	return err
}
