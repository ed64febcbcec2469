package ec2

import (
	"net/http"
	"slices"
	"time"
)

// Snapshot is one of a disk, written block by block. It is pending until it is completed,
// and once more after that, as a list shows it.
type Snapshot struct {
	ID, Description string
	State           string // pending, completed or error
	GiB             int
	Started         time.Time
	Tags            map[string]string
	Blocks          map[int][]byte // those that were written

	token, call string
	timeout     time.Duration
	written     time.Time // last
	sealed      bool
}

// snapshots are those of disks.
type snapshots struct {
	*base
	callers *callers

	byID map[string]*Snapshot
}

// All are those that there are, by ID.
func (m *snapshots) All() map[string]Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]Snapshot{}
	for id, s := range m.byID {
		all[id] = *s
	}
	return all
}

// writable finds a snapshot that can be written and completed. The caller holds the lock.
func (m *snapshots) writable(id string) (*Snapshot, error) {
	s := m.byID[id]
	if s == nil {
		return nil, &ebsError{http.StatusNotFound, "ResourceNotFoundException", "The snapshot '" + id + "' does not exist.", "SNAPSHOT_NOT_FOUND"}
	}
	m.age(s)
	if s.State == "error" {
		return nil, invalid("WRITE_REQUEST_TIMEOUT", "The snapshot '%s' was cancelled", id)
	}
	if s.State != "pending" || s.sealed {
		return nil, invalid("INVALID_SNAPSHOT_ID", "The snapshot '%s' is complete", id)
	}
	return s, nil
}

// age cancels a snapshot that nobody has written for too long.
func (m *snapshots) age(s *Snapshot) {
	if s.State == "pending" && !s.sealed && m.model.Now().Sub(s.written) > s.timeout {
		s.State = "error"
	}
}

// snapshotTags are those of a snapshot, for policies.
func (m *snapshots) snapshotTags(id string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.byID[id]; s != nil {
		return s.Tags
	}
	return nil
}

type snapshotXML struct {
	ID          string   `xml:"snapshotId"`
	State       string   `xml:"status"`
	Started     string   `xml:"startTime"`
	Owner       string   `xml:"ownerId"`
	GiB         int      `xml:"volumeSize"`
	Description string   `xml:"description"`
	Tags        []tagXML `xml:"tagSet>item"`
}

// describeSnapshots shows a snapshot that was just completed as pending once more.
func (m *snapshots) describeSnapshots(r *request) (any, error) {
	owners, ids := r.texts("Owner"), r.texts("SnapshotId")
	wanted := r.filters("tag:", "tag-key", "snapshot-id", "status")
	r.unpaged(ids, "snapshotSet")
	for _, o := range owners {
		if o != "self" && o != m.cfg.Account {
			r.bad("InvalidParameterValue", "The model knows the snapshots of its own account, not of %s", o)
		}
	}
	if err := m.one(r); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if m.byID[id] == nil {
			return nil, bad("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", id)
		}
	}
	var all []snapshotXML
	for id, s := range m.byID {
		m.age(s)
		x := snapshotXML{
			ID:          id,
			State:       s.State,
			Started:     wireTime(s.Started),
			Owner:       m.cfg.Account,
			GiB:         s.GiB,
			Description: s.Description,
			Tags:        tagSet(s.Tags),
		}
		if (len(ids) == 0 || slices.Contains(ids, id)) && wanted.match(func(name string) []string {
			switch name {
			case "snapshot-id":
				return []string{id}
			case "status":
				return []string{s.State}
			}
			return tagValues(s.Tags, name)
		}) {
			all = append(all, x)
			if s.sealed {
				s.State = "completed"
			}
		}
	}
	return paged(r, "snapshotSet", m.unasked(r, len(all)), all, func(s snapshotXML) string { return s.ID }), nil
}
