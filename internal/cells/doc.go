// Package cells owns the life of cells: the state machine from Requested to Gone.
// It is the only writer of cell records and the only caller of the cloud that
// launches. A change of phase is stored before anybody acts upon it. So a crash at
// any point neither loses nor doubles an instance.
//
// Each step of a cell's life is a struct with the few parts that it depends on, in a
// file of its own. stepOf in controller.go names the step of each phase, and loop runs
// it, by the progress that the step returns (progress.go). The files in the order of a cell's life,
// each with the parts that it hands over to:
//
//	request.go    a pod asks for a cell: standby.go gives one that fits
//	              (match.go), or add.go stores a new one; wants.go has what the pod wants of it
//	enqueue.go    before the launch: exclusionwaits.go (exclusion.go), then what delays launches (pause.go): rights.go,
//	              blockers.go; then launchqueue.go
//	launch.go     has the phases of a launch done, one after the other, and settles what has become of each cell (outcome.go):
//	              launchbatch.go takes a group from the queue, resolve.go (unresolved.go) has the cloud resolve it,
//	              intent.go (launchcall.go) stores the call, send.go sends it, conclude.go (launchanswers.go) reads the answers
//	resume.go     sends a stored launch again (storedcall.go), after a restart
//	join.go       its stages: address.go, contact.go, ready.go; bootfail.go ends what fails
//	connect.go    a connection: cellapis.go, dial.go, session.go, token.go, configure.go (upgrade.go, cloudinit.go),
//	              connectionreports.go
//	bind.go       before the pod: exclusivebind.go, agent.go, rename.go, reconnect.go, evacuate.go, disks.go,
//	              routes.go, plugins.go, hugepages.go, devices.go, kernel.go (prepare.go runs them); idle.go is for
//	              standby cells, with stop.go and start.go
//	watch.go      keeps it connected while its pod runs
//	drain.go      saves its logs (savelogs.go), frees its volumes (freevolumes.go), keeps that of a failed
//	              pod for a time (keep.go)
//	terminate.go  has its instance terminated, then remove.go its record
//
// Others watch over all cells: list.go asks for the cloud's list, compare.go compares it (inventory.go; sightings.go
// says what is gone), and consequences.go and lostinstance.go act on it; announce.go takes the cloud's notices that it takes
// instances back, interrupt.go stores them, and evacuate.go acts on them; health.go, refill.go,
// tag.go and boost.go do what their names say. Controller wires the parts, a file for each group
// (wire.go and wire*.go), and passes on what other packages ask, in api.go.
//
// A cell ends, an instance is terminated. The end of a cell begins in one of these, and is stored as a phase:
//
//	release.go       its pod is gone
//	bootfail.go      it has not become ready
//	lostcell.go      it is lost, by its lease (health.go), or since the cloud has ended its instance (lostinstance.go)
//	abandon.go       nobody knows whether its launch gave it an instance
//	hold.go          asks the guard first, where nobody has requested the end
//	cellends.go      begins the end, and nothing else does, and stores it
//
// Then its instance is terminated, as is one without a cell:
//
//	terminate.go, orphans.go   request it, for a cell or for none, until it is gone
//	terminations.go            has those that are under way
//	terminatecalls.go          asks the guard, makes the calls, and takes the answers
//
// All steps stand on a core: table has the cells that are there, records changes what
// is stored of them (by commit alone, but that add.go makes records), and with it the ledger (bill.go) and the table
// (adopt.go), and loop has the queue, the clock and the log. What one part alone holds of a cell
// is in a perCell of that part, what several hold in entry. What is to be known of the session with its agent
// is asked of agentSession alone. The locks and their order are listed in table.go. What several parts need is in
// timing.go (times), errors.go (what errors of the cloud and of the store mean) and keys.go (of stored records).
//
// This package decides nothing about pods. Package pods asks for a cell, lets it
// go, and observes what becomes of it.
package cells
