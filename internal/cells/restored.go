package cells

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/store"
)

// Restored makes the records of a backup fit to start from, and returns how many
// cells it took out. Call it at the end of a restore, before any controller loads
// the records; if it fails, the restore is to be done again.
//
// Since the backup, a standby cell may have been given to a pod. A cell that was
// being launched may have been launched as something else. To take them up could
// run a pod twice at a time, or two pods on one cell. No record names their
// instances then, nor those of standby cells that are younger than the backup. Such
// an instance is terminated before any pod that it may run gets another cell.
func Restored(ctx context.Context, st *store.Store, now time.Time) (dropped int, err error) {
	var changes []store.Change
	err = st.List(ctx, keyPrefix, func(key string, data []byte, revision int64) error {
		var cell Cell
		if err := json.Unmarshal(data, &cell); err != nil {
			return fmt.Errorf("read the stored cell %s: %w", key, err)
		}
		if cell.Live() && cell.Pod.UID == "" || cell.Phase == apiv1.Requested || cell.Phase == apiv1.Launching {
			changes = append(changes, store.Change{Key: key, Revision: revision})
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	dropped = len(changes)
	revision, err := st.Get(ctx, bornKey, new(time.Time))
	if err != nil {
		return 0, err
	}
	// First: an instance that no record names counts as unknown only if it is
	// older than this.
	changes = slices.Insert(changes, 0, store.Change{Key: bornKey, Value: now, Revision: revision})
	for some := range slices.Chunk(changes, store.MaxChanges) {
		if _, err := st.Apply(ctx, some...); err != nil {
			return 0, fmt.Errorf("make restored records fit to start from: %w", err)
		}
	}
	return dropped, nil
}
