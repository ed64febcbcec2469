package userdata

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

const (
	// maxBytes bounds the document as the agent does, which refuses a longer one; more is
	// no user data of Kip's.
	maxBytes = 64 << 10
	// maxName bounds what else a service says: names and numbers.
	maxName = 1 << 10
)

// Data is what a machine was launched with.
type Data struct {
	Document []byte
	// Place is the machine's in the launch whose document all share, "" where it has one
	// of its own.
	Place string
	// Hostname is the cloud's name of the machine, "" where that tells none.
	Hostname string
}

// Source is a place where user data may be.
type Source struct {
	Name string
	// Network says that it is asked over the network, which must be up.
	Network bool
	// Limit bounds the whole of one Fetch.
	Limit time.Duration
	// Clock is a time server that all machines of this cloud have, unset for none.
	Clock netip.Addr
	// IPv4Only says that machines of this cloud are to have no IPv6 address, since nobody has said
	// who may reach it.
	IPv4Only bool
	// Here reports whether this machine has the source.
	Here  func() (bool, error)
	Fetch func(ctx context.Context) (Data, error)
	// Ready tells the cloud that the machine works; nil where none asks.
	Ready func(ctx context.Context) error
}

// A drive of some hypervisors comes after the drivers: a machine without a source is looked at again, so
// often, for so long.
const (
	lookLimit = 5 * time.Second
	lookEvery = 100 * time.Millisecond
)

var (
	// errNowhere is that of a machine that has no source.
	errNowhere = errors.New("no user data: this machine has none of")
	// errUnread is that of a drive of which nobody knows whether it is a source. Others are looked at all the
	// same, since it may be a pod's; where there is none, it is told.
	errUnread = errors.New("a drive that may have user data cannot be read")
)

// Choose returns the first source that the machine has, and waits a little for one to come. One that is
// there and fails is not passed over for the next: a machine would take another's orders.
func Choose(ctx context.Context, sources []Source) (Source, error) {
	over, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	for {
		s, err := lookOnce(ctx, sources)
		if !errors.Is(err, errNowhere) {
			return s, err
		}
		select {
		case <-over.Done():
			return Source{}, err
		case <-time.After(lookEvery):
		}
	}
}

// lookOnce is look, bounded: a drive may hang.
func lookOnce(ctx context.Context, sources []Source) (Source, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	return within(ctx, "a drive that may have user data", func() (Source, error) { return look(sources) })
}

// look is Choose at one moment.
func look(sources []Source) (Source, error) {
	unread := ""
	for _, s := range sources {
		here, err := s.Here()
		switch {
		case errors.Is(err, errUnread):
			unread = "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
		case err != nil:
			return Source{}, fmt.Errorf("look for user data of %s: %w", s.Name, err)
		case here:
			return s, nil
		}
	}
	names := ""
	for _, s := range sources {
		names += ", " + s.Name
	}
	return Source{}, fmt.Errorf("%w%s%s", errNowhere, names[min(1, len(names)):], unread)
}

// lastWord is what a source has to say why it did not make it in time.
const lastWord = 100 * time.Millisecond

// within asks until ctx ends. What reads a device may hang on it, whatever ctx says: it is left then,
// and ends with the machine.
func within[T any](ctx context.Context, who string, ask func() (T, error)) (T, error) {
	type answer struct {
		is  T
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		is, err := ask()
		answers <- answer{is, err}
	}()
	select {
	case a := <-answers:
		return a.is, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answers:
		return a.is, a.err
	case <-time.After(lastWord):
		var none T
		return none, fmt.Errorf("%s does not answer: %w", who, ctx.Err())
	}
}

// Get asks a source within its limit.
func (s Source) Get(ctx context.Context) (Data, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	d, err := within(ctx, "it", func() (Data, error) { return s.Fetch(ctx) })
	if err == nil && len(d.Document) == 0 {
		err = errors.New("there is none: this machine was not launched by Kip")
	}
	if err == nil && len(d.Document) > maxBytes {
		err = fmt.Errorf("it has more than %d bytes", maxBytes)
	}
	if err != nil {
		return Data{}, fmt.Errorf("user data of %s: %w", s.Name, err)
	}
	return d, nil
}
