package installation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	// binDir is where the agent's programs go, which no distribution's packages touch.
	binDir = "usr/local/bin"
	// recordFile says what was put in place.
	recordFile = "usr/local/share/kip/installed.json"
	// agentName is the file that has to be there.
	agentName = "itzo"
)

// sources are the files of the agent, as kip-image agent packs them, and where they go.
var sources = []struct {
	name, to string
	mode     fs.FileMode
}{
	{agentName, binDir + "/itzo", 0o755},
	{"itzo-components", binDir + "/itzo-components", 0o755},
	{"itzo-containerd", binDir + "/itzo-containerd", 0o755},
	{"runc", binDir + "/runc", 0o755},
	{"portmap", "opt/cni/bin/portmap", 0o755},
	{"pause.tar", "usr/share/kip/pause.tar", 0o644},
}

// kept is what the agent keeps of itself, which is of no use without it.
var kept = []string{"var/lib/itzo", "run/itzo"}

// userDataPattern is of what may stand in the unit: it is a word of systemd's there.
var userDataPattern = regexp.MustCompile(`^[A-Za-z0-9/._-]{1,200}$`)

// Options of Check, Install and Uninstall.
type Options struct {
	// Root is the folder of the Linux: "/" for the one that runs, else that of an image.
	Root string
	// From is the folder with the agent's files.
	From string
	// Whole says that itzo in From is the kubelet and containerd as well.
	Whole bool
	// UserData is where the agent has its user data from, as itzo cell takes it.
	UserData string
	// Kernel is the release of the kernel that runs; "" where Root is not what runs.
	Kernel string
	// Systemctl asks the systemd that runs; nil where none does.
	Systemctl func(args ...string) error
	// Say tells of each thing that is done.
	Say func(format string, args ...any)
}

// record is what was put in place, by path.
type record struct {
	Files map[string]entry `json:"files"`
}

// entry is one file or link: what it is or, until it is written, was.
type entry struct {
	Digest string `json:"digest"`
	Before string `json:"before,omitempty"`
}

// item is to be in place: a file with the content of another or of its own, or a link.
type item struct {
	from    string // a file
	content string
	link    string // to where
	mode    fs.FileMode
}

// ErrLacking says that a Linux lacks what every cell needs; the findings say what.
var ErrLacking = errors.New("this Linux lacks what a cell needs")

// Check says what the Linux lacks, and changes nothing. The error is ErrLacking if that is
// something that every cell needs.
func (o Options) Check() ([]Finding, error) {
	root, err := os.OpenRoot(o.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return o.check(root)
}

func (o Options) check(root *os.Root) ([]Finding, error) {
	beside := func(name string) bool { _, err := os.Stat(filepath.Join(o.From, name)); return err == nil }
	found, err := check(root, o.Kernel, beside)
	if err != nil {
		return nil, err
	}
	for _, s := range []struct {
		name, what, why string
		here, required  bool
	}{
		{agentName, "itzo", "it is the agent", beside(agentName), true},
		{"itzo-components", "the kubelet (itzo-components)", "it runs the pod", o.Whole || beside("itzo-components"), true},
		{"itzo-containerd", "containerd (itzo-containerd)", "it runs containers", o.Whole || beside("itzo-containerd"), true},
		{"portmap", "portmap", "pods with hostPorts need it", beside("portmap") || has(root, "portmap", "opt/cni/bin"), false},
		{
			"pause.tar", "pause.tar", "each pod's sandbox is of it, and containerd takes another from registry.k8s.io then",
			beside("pause.tar") || has(root, "pause.tar", "usr/share/kip"), false,
		},
	} {
		if !s.here {
			found = append(found, Finding{
				What:     s.what + " is missing",
				Why:      s.why,
				To:       "put it into " + o.From,
				Required: s.required,
			})
		}
	}
	if slices.ContainsFunc(found, func(f Finding) bool { return f.Required }) {
		return found, ErrLacking
	}
	return found, nil
}

// Install puts the agent in place, if nothing that every cell needs is lacking; the
// findings are those of Check. What is in place stays as it is.
func (o Options) Install() ([]Finding, error) {
	if !userDataPattern.MatchString(o.UserData) {
		return nil, fmt.Errorf("user data %q: want cloud, ec2, or the path of a file of letters, digits and /._-", o.UserData)
	}
	root, err := os.OpenRoot(o.Root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found, err := o.check(root)
	if err != nil {
		return found, err
	}
	items, err := o.items(root)
	if err != nil {
		return found, err
	}
	changed, err := o.apply(root, items)
	if err == nil && changed && o.Systemctl != nil {
		err = o.Systemctl("daemon-reload")
	}
	if err != nil {
		return found, fmt.Errorf("install the agent in %s: %w", o.Root, err)
	}
	return found, nil
}

// items are all that is to be in place, by path.
func (o Options) items(root *os.Root) (map[string]item, error) {
	r, err := readRecord(root)
	if err != nil {
		return nil, err
	}
	items := map[string]item{
		unitFile: {content: unit(o.UserData), mode: 0o644},
		enabled:  {link: "../" + unitName},
	}
	maps.Copy(items, leavesAddresses)
	own := o.inPlace()
	for _, s := range sources {
		from := filepath.Join(o.From, s.name)
		if own {
			from = filepath.Join(o.Root, s.to)
		}
		if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if _, ours := r.Files[s.to]; s.name == "runc" && !ours && has(root, "runc", binaries...) {
			continue // the distribution's is kept up to date by it
		}
		items[s.to] = item{from: from, mode: s.mode}
	}
	return items, nil
}

// inPlace says that the agent in From is the one that is installed, whose files lie where
// they were put.
func (o Options) inPlace() bool {
	from, err := os.Stat(filepath.Join(o.From, agentName))
	if err != nil {
		return false
	}
	there, err := os.Stat(filepath.Join(o.Root, binDir, agentName))
	return err == nil && os.SameFile(from, there)
}

// apply brings the items in place and removes what an earlier installation had besides. It
// says whether anything changed. Somebody else's files stop it before that.
func (o Options) apply(root *os.Root, items map[string]item) (changed bool, err error) {
	r, err := readRecord(root)
	if err != nil {
		return false, err
	}
	plan, digests, in := record{Files: map[string]entry{}}, map[string]string{}, map[string]bool{}
	var errs []error
	for _, p := range slices.Sorted(maps.Keys(items)) {
		there, err := digestOf(root, p)
		if err != nil {
			return false, err
		}
		if digests[p], err = items[p].digest(); err != nil {
			return false, err
		}
		if there != "" && there != digests[p] && !r.owns(p, there) {
			errs = append(errs, fmt.Errorf("/%s is there, and not as this program has written it: move it away", p))
		}
		plan.Files[p] = entry{Digest: digests[p], Before: there}
		if in[p] = there == digests[p]; in[p] {
			plan.Files[p] = entry{Digest: there}
		}
	}
	if len(errs) > 0 {
		return false, errors.Join(errs...)
	}
	old := maps.Clone(r.Files)
	maps.DeleteFunc(old, func(p string, _ entry) bool { _, wanted := items[p]; return wanted })
	maps.Copy(plan.Files, old)
	// Otherwise a crash would leave files that nobody knows of.
	if err := plan.write(root); err != nil {
		return false, err
	}
	for _, p := range slices.Sorted(maps.Keys(items)) {
		if in[p] {
			continue
		}
		if err := items[p].put(root, p); err != nil {
			return changed, err
		}
		changed = true
		o.Say("wrote /%s", p)
	}
	gone, err := o.remove(root, record{Files: old})
	if err != nil {
		return changed, err
	}
	done := record{Files: map[string]entry{}}
	for p, d := range digests {
		done.Files[p] = entry{Digest: d}
	}
	return changed || gone, done.write(root)
}

// Uninstall removes what Install has put in place, but for what somebody has changed since,
// and what the agent has kept of itself.
func (o Options) Uninstall() error {
	root, err := os.OpenRoot(o.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	r, err := readRecord(root)
	if err != nil {
		return err
	}
	if len(r.Files) == 0 {
		o.Say("nothing is installed in %s", o.Root)
		return nil
	}
	if o.Systemctl != nil {
		// Without its file systemd may know the unit no more: an earlier removal has stopped it.
		there, err := digestOf(root, unitFile)
		if err != nil {
			return err
		}
		if err := o.Systemctl("stop", unitName); err != nil && there != "" {
			return err
		}
	}
	if _, err := o.remove(root, r); err != nil {
		return fmt.Errorf("remove the agent from %s: %w", o.Root, err)
	}
	for _, p := range append(slices.Clone(kept), recordFile) {
		if err := root.RemoveAll(p); err != nil {
			return fmt.Errorf("remove the agent from %s: %w", o.Root, err)
		}
	}
	if o.Systemctl != nil {
		return o.Systemctl("daemon-reload")
	}
	return nil
}

// remove removes the files of a record that are still as they were written.
func (o Options) remove(root *os.Root, r record) (removed bool, err error) {
	for _, p := range slices.Sorted(maps.Keys(r.Files)) {
		there, err := digestOf(root, p)
		if err != nil {
			return removed, err
		}
		switch {
		case there == "":
		case !r.owns(p, there):
			o.Say("left /%s, which was changed", p)
		default:
			if err := root.Remove(p); err != nil {
				return removed, err
			}
			removed = true
			o.Say("removed /%s", p)
		}
	}
	return removed, nil
}

// owns says that what is at a path was written by this program.
func (r record) owns(p, digest string) bool {
	e, ok := r.Files[p]
	return ok && (e.Digest == digest || e.Before == digest)
}

func readRecord(root *os.Root) (record, error) {
	var r record
	b, err := root.ReadFile(recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read what is installed: %w", err)
	}
	return r, nil
}

func (r record) write(root *os.Root) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if there, err := root.ReadFile(recordFile); err == nil && string(there) == string(b)+"\n" {
		return nil
	}
	return item{content: string(b) + "\n", mode: 0o644}.put(root, recordFile)
}

// digest tells one item from another, its mode included.
func (i item) digest() (string, error) {
	if i.link != "" {
		return "-> " + i.link, nil
	}
	in, err := i.open()
	if err != nil {
		return "", err
	}
	defer in.Close()
	return digest(in, i.mode)
}

// digestOf is the digest of what is at a path below root, "" of nothing.
func digestOf(root *os.Root, p string) (string, error) {
	info, err := root.Lstat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case info.Mode().Type() == fs.ModeSymlink:
		to, err := root.Readlink(p)
		return "-> " + to, err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("/%s is no file", p)
	}
	f, err := root.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return digest(f, info.Mode().Perm())
}

func digest(r io.Reader, mode fs.FileMode) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %o", hex.EncodeToString(h.Sum(nil)), mode), nil
}

func (i item) open() (io.ReadCloser, error) {
	if i.from != "" {
		return os.Open(i.from)
	}
	return io.NopCloser(strings.NewReader(i.content)), nil
}

// put replaces what is at a path as a whole, so that nobody sees, or starts, half of it.
func (i item) put(root *os.Root, p string) error {
	if err := root.MkdirAll(path.Dir(p), 0o755); err != nil {
		return err
	}
	tmp := path.Join(path.Dir(p), "."+path.Base(p)+".new")
	if err := root.RemoveAll(tmp); err != nil {
		return err
	}
	if i.link != "" {
		if err := root.Symlink(i.link, tmp); err != nil {
			return err
		}
		return root.Rename(tmp, p)
	}
	in, err := i.open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, i.mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	// Whatever the umask.
	if err := errors.Join(err, out.Chmod(i.mode), out.Sync(), out.Close()); err != nil {
		return err
	}
	return root.Rename(tmp, p)
}
