package store

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// maintainEvery is how long writes may stay refused for an alarm whose cause
	// can be cleared; a look costs nothing.
	maintainEvery = time.Minute
	// defragmentAbove, in bytes, is the size from which a database that is less
	// than half used is rewritten. etcd reuses the free half, so it is only for
	// the disk; and it answers nobody meanwhile, about a second for 100 MB.
	defragmentAbove = 64 << 20
	// defragmentTimeout is for the default quota, 2 GiB, on a slow disk.
	defragmentTimeout = 5 * time.Minute
	// relieved is the share of its quota, in percent, below which a database
	// takes writes again.
	relieved = 90
)

// Maintain looks after an embedded etcd until ctx ends or etcd does: it gives
// back disk space that is no longer used, and clears the alarm of a database
// that has reached its quota. Old revisions etcd drops by itself, every five
// minutes. With another store it only waits for ctx: a shared etcd is for its
// own operator to maintain. What fails is logged and tried again; the result is
// nil.
func (s *Store) Maintain(ctx context.Context, log *slog.Logger) error {
	if s.embedded == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.done:
			return nil
		case <-tick.C:
		}
		if err := s.maintain(ctx, log); err != nil && ctx.Err() == nil {
			log.Warn("maintain etcd", "err", err)
		}
	}
}

// maintain takes one look. ErrNoSpace if the database is at its quota and
// nothing in it can be dropped.
func (s *Store) maintain(ctx context.Context, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, defragmentTimeout)
	defer cancel()
	e := s.backend.(etcd)
	status, err := s.embeddedStatus(ctx)
	if err != nil {
		return err
	}
	full, err := ask(ctx, e, func(ctx context.Context) (*clientv3.AlarmResponse, error) { return e.client.AlarmList(ctx) })
	if err != nil {
		return fmt.Errorf("list etcd's alarms: %w", err)
	}
	alarmed := slices.ContainsFunc(full.Alarms, func(a *etcdserverpb.AlarmMember) bool { return a.Alarm == etcdserverpb.AlarmType_NOSPACE })
	if alarmed {
		_, err := ask(ctx, e, func(ctx context.Context) (*clientv3.CompactResponse, error) {
			return e.client.Compact(ctx, status.Header.Revision, clientv3.WithCompactPhysical())
		})
		if err != nil {
			log.Debug("compact etcd", "err", err) // it may have been, at this revision
		}
	}
	if alarmed || status.DbSize >= defragmentAbove && status.DbSizeInUse < status.DbSize/2 {
		// Not by the client: within the process its Defragment panics, as of
		// etcd 3.6, for want of a health service to tell.
		_, err := ask(ctx, e, func(context.Context) (*struct{}, error) { return nil, s.embedded.Defragment() })
		if err != nil {
			return fmt.Errorf("defragment etcd: %w", err)
		}
		before := status.DbSize
		if status, err = s.embeddedStatus(ctx); err != nil {
			return err
		}
		log.Info("gave back disk space of etcd", "bytes_before", before, "bytes", status.DbSize)
	}
	if !alarmed {
		return nil
	}
	if status.DbSize > status.DbSizeQuota/100*relieved {
		return fmt.Errorf("%w: %d of the %d bytes of etcd's quota are in use by records: raise quota-backend-bytes in etcd.internal.configFile",
			ErrNoSpace, status.DbSize, status.DbSizeQuota)
	}
	if _, err := ask(ctx, e, func(ctx context.Context) (*clientv3.AlarmResponse, error) {
		return e.client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}); err != nil {
		return fmt.Errorf("disarm etcd's alarm: %w", err)
	}
	log.Info("etcd takes writes again", "bytes", status.DbSize, "quota", status.DbSizeQuota)
	return nil
}

func (s *Store) embeddedStatus(ctx context.Context) (*clientv3.StatusResponse, error) {
	e := s.backend.(etcd)
	r, err := ask(ctx, e, func(ctx context.Context) (*clientv3.StatusResponse, error) { return e.client.Status(ctx, "") })
	if err != nil {
		return nil, fmt.Errorf("read etcd's status: %w", err)
	}
	return r, nil
}
