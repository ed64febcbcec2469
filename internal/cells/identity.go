package cells

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/cloud"
)

// ControllerID returns the identity of a Kip: derived from the cluster (the UID of
// its kube-system namespace) and the node's name, so that a lost volume orphans
// nothing. 26 lower-case characters, as long as the original's.
func ControllerID(clusterUID, nodeName string) string {
	sum := sha256.Sum256([]byte(clusterUID + "/" + nodeName))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:26]
}

// newID returns a prefix and 80 random bits.
func newID(prefix string) string {
	var b [10]byte
	rand.Read(b[:]) // never fails: crypto/rand crashes the program instead
	return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// JoinID returns the cell ID under which the cell's machine joins: what the machine can
// know of it. That is the cell's own; or, where the machines of its launch share
// their user data, that of its place in the launch.
func (c Cell) JoinID() string {
	if c.Launch != nil && c.Launch.Shared {
		return agentapi.BatchCell(c.Launch.ID, cloud.PlaceOf(c.Launch.Index))
	}
	return c.ID
}

// joinIDOf returns the JoinID of the cell that an instance is.
func joinIDOf(i cloud.Instance) string {
	if batch := i.Tags[cloud.TagBatch]; batch != "" {
		return agentapi.BatchCell(batch, i.Place)
	}
	return i.Tags[cloud.TagCell]
}

// launchToken derives the idempotency token of a launch: whoever sends it, however often, it is the same
// one. A launch's ID is random and of that launch alone, since a cloud may answer a token with the
// instances of an earlier attempt long after their end. 64 hexadecimal digits, EC2's limit for a
// ClientToken.
func (c Cell) launchToken(controllerID string) string { return launchToken(controllerID, c.Launch.ID) }

func launchToken(controllerID, launch string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "launch\n%s\n%s", controllerID, launch))
	return hex.EncodeToString(sum[:])
}

// launchedBy reports whether an instance was launched by a Kip of this identity, as far as its cloud tells:
// who may write tags can give it Kip's, but not the token of its launch. Nothing else that the cloud
// tells of it counts: a host may be another one since, and all of a VPC may be dedicated.
func launchedBy(controllerID string, i cloud.Instance) bool {
	return i.Origin.Token == "" || i.Origin.Token == launchToken(controllerID, i.Tags[cloud.TagBatch])
}
