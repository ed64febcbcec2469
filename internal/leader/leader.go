package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/elotl/kip/internal/store"
)

// ttl is how long, in seconds, a leader that is silent stays leader: a standby
// then takes over within this, and one more second for etcd to notice. The
// lease is renewed three times in it, so that a request may be lost.
const ttl = 8

// retryEvery is the pause after an etcd that did not answer a candidate.
const retryEvery = time.Second

// Leadership is a turn at leading, from Elect to Resign or a loss.
type Leadership struct {
	store   *store.Store
	client  *clientv3.Client     // nil if nobody else could lead
	session *concurrency.Session // nil if nobody else could lead
}

// Elect waits until this process leads those that elect on the same view of the
// same etcd, or ctx ends, which is its only error while etcd can come back. An
// embedded etcd belongs to one process by its lock: that one leads at once.
// identity is what other candidates log about whom they wait for, as a pod's
// name.
func Elect(ctx context.Context, st *store.Store, identity string, log *slog.Logger) (*Leadership, error) {
	client, prefix, shared := st.Shared()
	if !shared {
		return &Leadership{store: st}, nil
	}
	for {
		l, err := campaign(ctx, st, client, prefix, identity, log)
		if err == nil {
			log.Info("this Kip leads", "identity", identity)
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("become the leader: %w", ctx.Err())
		}
		log.Warn("become the leader, retrying", "err", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("become the leader: %w", ctx.Err())
		case <-time.After(retryEvery):
		}
	}
}

// campaign waits for one lease's turn. An error means that the lease is given up.
func campaign(ctx context.Context, st *store.Store, client *clientv3.Client, prefix, identity string, log *slog.Logger) (l *Leadership,
	err error) {
	granted, cancel := context.WithTimeout(ctx, ttl*time.Second)
	lease, err := client.Grant(granted, ttl)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("get a lease of etcd: %w", err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithLease(lease.ID), concurrency.WithTTL(ttl))
	if err != nil {
		return nil, fmt.Errorf("keep a lease of etcd: %w", err)
	}
	defer func() {
		if err != nil {
			// If this fails, the lease runs out.
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), retryEvery)
			defer cancel()
			_ = end(ending, client, session)
		}
	}()
	election := concurrency.NewElection(session, prefix+"election")
	if now, err := election.Leader(ctx); err == nil {
		log.Info("waiting to lead", "leader", string(now.Kvs[0].Value), "identity", identity)
	} else if !errors.Is(err, concurrency.ErrElectionNoLeader) {
		return nil, fmt.Errorf("see who leads: %w", err)
	}

	// A lease that runs out takes the candidate's own key with it, and the
	// campaign would wait on, or win, without one.
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(session.Ctx(), stop)()
	// On a goroutine of its own: once cancelled, Campaign takes its key back
	// with no other limit than the client's life.
	won := make(chan error, 1)
	go func() { won <- election.Campaign(waiting, identity) }()
	select {
	case err := <-won:
		if err != nil {
			return nil, fmt.Errorf("wait for the leader to go: %w", err)
		}
	case <-waiting.Done():
		return nil, errors.New("the lease ran out while it waited")
	}
	key, created := election.Key(), election.Rev()
	own, err := client.Get(waiting, key)
	if err != nil {
		return nil, fmt.Errorf("see whether this Kip leads: %w", err)
	}
	if len(own.Kvs) == 0 || own.Kvs[0].CreateRevision != created {
		return nil, errors.New("the lease ran out while it waited")
	}
	return &Leadership{store: st.Fenced(key, created), client: client, session: session}, nil
}

// Store returns the view of the store that the leader writes through. After a
// loss its writes fail with store.ErrNotLeader; reads go on.
func (l *Leadership) Store() *store.Store { return l.store }

// Lost is closed when the lease has run out or could not be renewed, so that
// another may lead; after Resign too. It never is where nobody else could.
func (l *Leadership) Lost() <-chan struct{} {
	if l.session == nil {
		return nil
	}
	return l.session.Done()
}

// Resign lets the next one lead at once. Call it when the process writes
// nothing any more, and before the store is closed.
func (l *Leadership) Resign(ctx context.Context) error {
	if l.session == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ttl*time.Second)
	defer cancel()
	if err := end(ctx, l.client, l.session); err != nil {
		return fmt.Errorf("resign from leading: %w", err)
	}
	return nil
}

// end revokes the lease, and with it the key of the leader or candidate.
func end(ctx context.Context, client *clientv3.Client, session *concurrency.Session) error {
	session.Orphan()
	_, err := client.Revoke(ctx, session.Lease())
	if errors.Is(err, rpctypes.ErrLeaseNotFound) { // it had run out
		return nil
	}
	return err
}
