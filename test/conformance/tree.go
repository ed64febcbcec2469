package main

import (
	"context"
	"errors"
	"fmt"
)

const (
	// noCommit stands for the commit of a tree that is no git checkout.
	noCommit = "unknown"
	// dirty ends the commit of a tree with uncommitted changes.
	dirty = "-dirty"
)

// commit is what is tested, and a line that says why results of it cannot be
// published, if so.
func (o options) commit(ctx context.Context) (commit, warning string) {
	prefix, err := o.output(ctx, "git", "rev-parse", "--show-prefix")
	if err == nil && prefix != "" {
		err = errors.New("the checkout around it is another's") // as when an archive is unpacked in one
	}
	var changes string
	if err == nil {
		commit, err = o.output(ctx, "git", "rev-parse", "--short=12", "HEAD")
	}
	if err == nil {
		changes, err = o.output(ctx, "git", "status", "--porcelain")
	}
	switch {
	case err != nil:
		return noCommit, fmt.Sprintf("not publishable: this is no git checkout, so no commit can be named (%v)\n", err)
	case changes != "":
		return commit + dirty, "not publishable: the tree has uncommitted changes\n"
	}
	return commit, ""
}
