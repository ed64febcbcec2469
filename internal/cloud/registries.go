package cloud

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// MaxPulled is how many repositories one call of PullCredentials names at most. Each by its
// longest name, they fit into what bounds a right: on AWS the 2,048 characters of a session
// policy (STS API reference, "AssumeRole").
const MaxPulled = 5

// Registries is a cloud with registries of images, which lends the right to pull from them.
type Registries interface {
	// Images are patterns of the images in such registries, as a kubelet's matchImages has
	// them. They never change.
	Images() []string
	// PullCredentials returns what pulls from these repositories of a registry, from 1 to
	// MaxPulled, and is worth nothing else: neither another repository nor another call of
	// the cloud. registry is the host in the images' names. Both may be of a pod's own
	// choosing, so the cloud refuses with ErrRefused what is none of its registries, and each
	// name that might mean more than one repository. So does a cloud to which nobody has
	// said by which right.
	PullCredentials(ctx context.Context, registry string, repositories ...string) (PullCredentials, error)
}

// PullCredentials are a name and a password for a registry. Whatever prints, logs or
// marshals them shows no password.
type PullCredentials struct {
	Username string
	// Lifetime is how long they are good from when they were asked for.
	Lifetime time.Duration
	password string
}

// NewPullCredentials returns credentials with a password.
func NewPullCredentials(username, password string, lifetime time.Duration) PullCredentials {
	return PullCredentials{Username: username, Lifetime: lifetime, password: password}
}

// Reveal returns the password.
func (c PullCredentials) Reveal() string { return c.password }

func (c PullCredentials) String() string { return c.Username + ":***" }

// Format prints String, whatever the verb.
func (c PullCredentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue is for log/slog.
func (c PullCredentials) LogValue() slog.Value { return slog.StringValue(c.String()) }
