package cells

import (
	"context"
	"fmt"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
	"github.com/elotl/kip/internal/agentapi"
)

// CloudInit is the operator's cloud-init file, which changes. What a launch names of it is
// kept as long as a cell does.
type CloudInit interface {
	// Digest names the content that counts for the next launch, which is stored; "" for none.
	Digest() string
	// NeedsLogin reports whether that content has users, or their keys.
	NeedsLogin() bool
	// Document returns a content by its digest.
	Document(ctx context.Context, digest string) ([]byte, error)
	// Unfit tells the operator why cells with the content that counts are not launched, again
	// and again as long as they are not. It does not block.
	Unfit(why string)
}

// recipe is what cells are made of, as far as it is not their own.
type recipe struct {
	settings string    // names image and settings
	file     CloudInit // the operator's cloud-init file; nil for none
	agent    *agentapi.Agent
	nameTag  string
	standby  Options // of standby cells
	reserved int64   // bytes of memory that are the cell's own
}

// digest returns the digest of the file that counts for the next launch.
func (r *recipe) digest() string {
	if r.file == nil {
		return ""
	}
	return r.file.Digest()
}

// template names what a cell is made of, with this cloud-init file.
func (r *recipe) template(cloudInit string) string {
	if cloudInit == "" {
		return r.settings
	}
	return r.settings + "-" + cloudInit[:min(len(cloudInit), 16)]
}

// standbyCell returns the record of a new cell for a pool.
func (r *recipe) standbyCell(pool string, offerings []Offering, now time.Time) Cell {
	cell := Cell{
		ID:        newID("cell-"),
		Phase:     apiv1.Requested,
		OfPool:    OfPool{Standby: pool, Template: r.template(r.digest())},
		Offerings: offerings,
		Options:   r.standby,
		Reason:    "standby pool " + pool,
	}
	cell.step(apiv1.StepPlaced, now)
	return cell
}

// startKind returns the kind of launch by which the cloud starts what is launched now like a cell.
func (r *recipe) startKind(cell *Cell) launchKind {
	return launchKind{
		starts: true, template: r.settings, image: fmt.Sprint(cell.Options.Image), arch: cell.Offering().Arch,
		spot: cell.Offering().Spot, driver: cell.needsDevices() || cell.Offering().HasGPUs,
	}
}
