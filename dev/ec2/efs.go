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

// fileSystems is Amazon EFS.
type fileSystems struct {
	*base
	callers      *callers
	networks     *networks
	groups       *groups
	mountTargets *mountTargets

	all []FileSystem
}

// All are those that there are.
func (m *fileSystems) All() []FileSystem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

// efsState is the state of what was made then.
func (m *fileSystems) efsState(made time.Time) string {
	if m.model.Now().Sub(made) < m.cfg.FileSystemStep {
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

// shownFileSystem is called with mu held, as are the calls below.
func (m *fileSystems) shownFileSystem(f FileSystem) fileSystemJSON {
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
	for _, t := range m.mountTargets.all {
		if t.FileSystem == f.ID {
			out.MountTargets++
		}
	}
	for _, key := range sortedKeys(f.Tags) {
		out.Tags = append(out.Tags, efsTag{key, f.Tags[key]})
	}
	return out
}

// serveEFS answers a call of Amazon EFS.
func (m *fileSystems) serveEFS(w http.ResponseWriter, r *http.Request) {
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
	m.callers.serveJSON(w, r, jsonService{name: "elasticfilesystem", message: "Message"}, action, resource, func(*request) (any, error) {
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
func (m *fileSystems) createFileSystem(body io.Reader) (any, error) {
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
	if n := slices.IndexFunc(m.all, func(f FileSystem) bool { return f.Token == in.CreationToken }); n >= 0 {
		return nil, efsError(http.StatusConflict, "FileSystemAlreadyExists",
			"File system '%s' already exists with creation token '%s'", m.all[n].ID, in.CreationToken)
	}
	m.made++
	f := FileSystem{
		ID:        fmt.Sprintf("fs-%017x", m.made),
		Token:     in.CreationToken,
		Encrypted: in.Encrypted,
		Tags:      map[string]string{},
		Made:      m.model.Now(),
	}
	for _, t := range in.Tags {
		f.Tags[t.Key] = t.Value
	}
	m.all = append(m.all, f)
	return answered{http.StatusCreated, m.shownFileSystem(f)}, nil
}

func (m *fileSystems) fileSystem(id string) (int, error) {
	n := slices.IndexFunc(m.all, func(f FileSystem) bool { return f.ID == id })
	if n < 0 {
		return n, efsError(http.StatusNotFound, "FileSystemNotFound", "File system '%s' does not exist.", id)
	}
	return n, nil
}

func (m *fileSystems) describeFileSystems(id, token string) (any, error) {
	all := []fileSystemJSON{}
	for _, f := range m.all {
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
func (m *fileSystems) deleteFileSystem(id string) error {
	n, err := m.fileSystem(id)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(m.mountTargets.all, func(t MountTarget) bool { return t.FileSystem == id }) {
		return efsError(http.StatusConflict, "FileSystemInUse", "File system '%s' has mount targets", id)
	}
	m.all = slices.Delete(m.all, n, n+1)
	return nil
}
