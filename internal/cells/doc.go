// Package cells owns the life of cells: the state machine from Requested to Gone.
// It is the only writer of cell records and the only caller of the cloud that
// launches. A change of phase is stored before anybody acts upon it. So a crash at
// any point neither loses nor doubles an instance.
//
// Each step of a cell's life is a struct with the few parts that it depends on, in a
// file of its own. stepOf in controller.go names the step of each phase, and loop.go runs
// it. A step returns a progress (progress.go), which says what the cell waits for. A step that
// knows better at a later time tells people so (waitsForLocked). The files in the order of a cell's life, each with the
// parts that it hands over to:
//
//	request.go     a pod asks for a cell: budget.go bounds what its namespace pays, standby.go gives it a cell that
//	               fits (match.go, measure.go, firstconnect.go), or add.go stores a new one; wants.go has what the pod
//	               wants of it
//	enqueue.go     before the launch: resolveretry.go, duplicatewaits.go (duplicates.go), then what delays launches
//	               (breaker.go): rights.go, blockers.go; then launchqueue.go
//	launch.go      has the phases of a launch done, one after the other, and settles what has become of each cell
//	               (outcome.go): launchbatch.go takes a group from the queue (batchsizes.go), resolve.go (unresolved.go)
//	               has the cloud resolve it, intent.go (launchcall.go, labels.go) stores the call, send.go sends it,
//	               evaluate.go (launchanswers.go) reads the answers
//	resume.go      sends a stored launch again (storedcall.go), after a restart
//	join.go        its stages: address.go, contact.go, ready.go; bootfail.go ends what fails (boottime.go, console.go)
//	connect.go     a connection: cellapis.go, dial.go (session.go), token.go, configure.go (upgrade.go, cloudinit.go),
//	               connectionreports.go (boot.go, version.go); connection.go is what there is of it
//	bind.go        before the pod: bindduplicates.go, agent.go, rename.go, reconnect.go, evacuate.go, disks.go,
//	               routes.go, plugins.go, hugepages.go, swap.go, devices.go, kernel.go,
//	               credentialproviders.go (prepare.go runs them,
//	               bindwaits.go has the patience with what they wait for); idle.go is for standby cells, with stop.go and start.go
//	watch.go       keeps it connected while its pod runs; boost.go ends what its start had of CPU besides
//	drain.go       saves its logs (savelogs.go), ends what runs beside its pod (copies.go), frees its volumes
//	               (freevolumes.go), keeps that of a failed pod for a time (keep.go)
//	terminate.go   has its instance terminated, then remove.go its record
//
// A cell ends, an instance is terminated. The end of a cell begins in one of these, and is stored as a phase:
//
//	release.go     its pod is gone, or has ended
//	bootfail.go    it has not become ready
//	lostcell.go    it is lost, by its lease (health.go), or since the cloud has ended its instance (lostinstance.go)
//	abandon.go     nobody knows whether its launch gave it an instance
//	hold.go        asks the guard first, where nobody has requested the end
//	cellends.go    begins the ends of live cells; outcome.go stores those of its own
//
// Then its instance is terminated, as is one without a cell:
//
//	terminate.go, orphans.go   request it, for a cell or for none, until it is gone
//	terminations.go            has those that are under way
//	terminatecalls.go          asks the guard, makes the calls, and takes the answers
//
// These watch over all cells:
//
//	list.go        asks for the cloud's list; compare.go compares it with the cells (foreign.go, describe.go):
//	               inventory.go has what the cloud has shown (snapshot.go), and sightings.go decides what is gone;
//	               consequences.go and lostinstance.go act on it, silentzones.go avoids zones that do not answer
//	generationchecks.go   compares the list with what the store knows of (generation.go, storegeneration.go, behind.go)
//	health.go      ends cells whose leases are not renewed: survey.go surveys all, disruption.go (location.go) knows when
//	               most are silent at once, refusal.go reports those that refuse this Kip, listening.go knows since when
//	               Kip can hear them
//	announce.go    takes the cloud's notices that it takes instances back, notice.go those of cells; interrupt.go stores
//	               them, and evacuate.go acts on them
//	refill.go      keeps the standby pools full (pools.go, recipe.go)
//	tag.go, sweep.go, ingress.go, trust.go   write tags, delete what instances have left, have the cloud let Kip in, and
//	               have cells know Kip by its CA
//
// What others see of cells: api.go has what other packages ask, and queries.go, totalcosts.go and nodenames.go answer;
// observe.go has what observers are told. mirror.go (images.go, copies.go) writes the Cell resource. identity.go and
// restored.go are asked before there is a Controller.
//
// All steps stand on a core: table.go has the cells that are there, and records.go changes what
// is stored of them (by commit alone, but that add.go makes records), and with it package ledger (bill.go, account.go)
// and the table (adopt.go). loop.go has the queue, the clock and the log; async.go does what is slow, ask.go asks agents, and
// attempts.go, gather.go and dedup.go count tries, collect what comes in bursts, and keep what goes on from being
// reported again and again (report.go). cell.go is the record (phase.go, candidates.go), entry.go a cell in this process; what one part
// alone knows of a cell is in a perCell of that part. links.go has what connections and APIs are, behind interfaces.
// The locks and their order are listed in table.go. What several parts need is in
// timing.go (times), errors.go (what errors of the cloud and of the store mean) and keys.go (of stored records).
//
// Controller wires the parts of config.go, a file for each group (wire.go and wire*.go). load.go has them take up what an
// earlier process has stored (born.go, orphancalls.go).
//
// This package decides nothing about pods. Package pods asks for a cell, lets it
// go, and observes what becomes of it.
package cells
