package volumes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/elotl/kip/internal/agentapi"
)

// filled returns a source of which only one field is set, to an empty value.
func filled[S any](field int) (s S, kind string) {
	v := reflect.ValueOf(&s).Elem()
	f := v.Field(field)
	f.Set(reflect.New(f.Type().Elem()))
	kind, _, _ = strings.Cut(v.Type().Field(field).Tag.Get("json"), ",")
	return s, kind
}

// Each kind that Kubernetes has is decided on: a new one shows up here.
func TestEachKindOfVolumeWorksOrSaysWhyNot(t *testing.T) {
	inlineWorks := map[string]bool{"emptyDir": true, "configMap": true, "secret": true, "projected": true, "downwardAPI": true,
		"hostPath": true, "nfs": true, "image": true}
	asClaims := map[string]bool{"persistentVolumeClaim": true, "ephemeral": true}
	persistentWorks := map[string]bool{"local": true, "hostPath": true, "nfs": true}
	checked := func(t *testing.T, kind string, works bool, err error) {
		t.Helper()
		var unsupported *UnsupportedError
		if works != (err == nil) || err != nil && !errors.As(err, &unsupported) {
			t.Errorf("%s: %v: want it to work: %t", kind, err, works)
		}
		if err != nil && (unsupported.Volume != "v" || unsupported.Why == "") {
			t.Errorf("%s: %+v does not name the volume and the reason", kind, unsupported)
		}
	}
	for i := range reflect.TypeFor[corev1.VolumeSource]().NumField() {
		source, kind := filled[corev1.VolumeSource](i)
		if asClaims[kind] {
			continue
		}
		checked(t, kind, inlineWorks[kind], Drivers{}.checkInline(&corev1.Volume{Name: "v", VolumeSource: source}))
	}
	for i := range reflect.TypeFor[corev1.PersistentVolumeSource]().NumField() {
		source, kind := filled[corev1.PersistentVolumeSource](i)
		checked(t, kind, persistentWorks[kind], Drivers{}.checkPersistent("v",
			&corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}, true))
	}
	if err := (Drivers{}).checkInline(&corev1.Volume{Name: "v"}); err != nil {
		t.Errorf("a volume without a source is an emptyDir: %v", err)
	}
}

// all disks are those of their volumes.
func all(context.Context, *corev1.PersistentVolume) error { return nil }

func onDisk(name, disk, zone string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: Driver, VolumeHandle: disk, FSType: "ext4", VolumeAttributes: map[string]string{AttributeZone: zone},
		}},
	}}
}

func TestAKubeletSeesADiskAsALocalVolume(t *testing.T) {
	pv := onDisk("pv", "disk-1", "a")
	shown := OnCell(pv, new(corev1.PersistentVolumeClaim), CloudDriver{})
	if l := shown.Spec.Local; l == nil || shown.Spec.CSI != nil || l.Path != agentapi.DiskPath("disk-1") || *l.FSType != "ext4" ||
		shown.Spec.NodeAffinity == nil || shown.Name != "pv" {
		t.Errorf("shown as %+v", shown.Spec)
	}
	if pv.Spec.CSI == nil {
		t.Error("the volume was changed")
	}
	block := corev1.PersistentVolumeBlock
	pv.Spec.VolumeMode, pv.Spec.CSI.FSType = &block, ""
	shown = OnCell(pv, new(corev1.PersistentVolumeClaim), CloudDriver{})
	if l := shown.Spec.Local; l == nil || l.Path != agentapi.DiskPath("disk-1") || l.FSType != nil {
		t.Errorf("a block volume is shown as %+v", l)
	}
	other := onDisk("pv", "vol-1", "a")
	other.Spec.CSI.Driver = "ebs.csi.aws.com"
	if OnCell(other, new(corev1.PersistentVolumeClaim), CloudDriver{}) != other {
		t.Error("the volume of another driver is changed")
	}
}

func TestAKubeletGrowsAFileSystemToWhatIsAllocated(t *testing.T) {
	size := func(s string) corev1.ResourceList {
		if s == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	for name, c := range map[string]struct {
		given, want string
		change      func(*corev1.PersistentVolumeSpec)
	}{
		"nothing was expanded":           {want: "3Gi"},
		"all of it":                      {given: "3Gi", want: "3Gi"},
		"the disk has whole GiB":         {given: "2500Mi", want: "2500Mi"},
		"the disk has not grown yet":     {given: "4Gi", want: "3Gi"},
		"the volume is for reading only": {given: "3Gi", want: "0", change: func(s *corev1.PersistentVolumeSpec) { s.CSI.ReadOnly = true }},
		"its mount options say so as well": {given: "3Gi", want: "0", change: func(s *corev1.PersistentVolumeSpec) {
			s.MountOptions = []string{"ro"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			own := onDisk("pv", "disk-1", "a")
			own.Spec.Capacity = size("3Gi")
			theirs := ofTheCloud()
			theirs.Spec.Capacity = size("3Gi")
			for _, pv := range []*corev1.PersistentVolume{own, theirs} {
				if c.change != nil {
					c.change(&pv.Spec)
				}
				claim := claimed("c", pv.Name, func(p *corev1.PersistentVolumeClaim) { p.Status.AllocatedResources = size(c.given) })
				if got := OnCell(pv, claim, clouds).Spec.Capacity.Storage().String(); got != c.want {
					t.Errorf("a volume of %s is shown with %s, want %s", pv.Spec.CSI.Driver, got, c.want)
				}
				if pv.Spec.Capacity.Storage().String() != "3Gi" {
					t.Error("the volume was changed")
				}
			}
		})
	}
}

// boundTo binds a volume to a claim.
func boundTo(claim string, pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: claim, UID: types.UID("uid of " + claim)}
	return pv
}

func claimed(name, volume string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid of " + name)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func TestThePodsDisksAreThoseOfItsClaims(t *testing.T) {
	use := func(name, claim string) corev1.Volume {
		return corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
	}
	ephemeral := corev1.Volume{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}
	own := func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid", Controller: ptr.To(true)}}
	}
	foreign := onDisk("foreign", "vol-1", "a")
	foreign.Spec.CSI.Driver = "ebs.csi.aws.com"
	xfs := onDisk("xfs", "disk-9", "a")
	xfs.Spec.CSI.FSType = "xfs"
	client := fake.NewClientset(
		boundTo("one", onDisk("pv-1", "disk-1", "a")), boundTo("two", onDisk("pv-2", "disk-2", "a")),
		boundTo("elsewhere", onDisk("pv-3", "disk-3", "b")),
		boundTo("p-e", onDisk("pv-4", "disk-4", "a")), onDisk("pv-5", "disk-5", "a"), boundTo("foreign", foreign), boundTo("xfs", xfs),
		claimed("one", "pv-1"), claimed("thief", "pv-1"), claimed("early", "pv-5"), claimed("two", "pv-2"), claimed("elsewhere", "pv-3"),
		claimed("foreign", "foreign"), claimed("xfs", "xfs"),
		claimed("nowhere", "pv-none"), claimed("p-e", "pv-4", own),
		claimed("pending", "", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }),
		claimed("lost", "pv-1", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }),
	)
	for name, tc := range map[string]struct {
		volumes     []corev1.Volume
		without     bool // the cloud has no disks
		want        []Disk
		notReady    string
		unsupported string
	}{
		"none": {},
		"one":  {volumes: []corev1.Volume{use("v", "one")}, want: []Disk{{"disk-1", "pv-1", "a"}}},
		"two": {volumes: []corev1.Volume{use("v", "one"), use("w", "two")},
			want: []Disk{{"disk-1", "pv-1", "a"}, {"disk-2", "pv-2", "a"}}},
		"one twice": {volumes: []corev1.Volume{use("v", "one"), use("w", "one")}, want: []Disk{{"disk-1", "pv-1", "a"}}},
		"its own":   {volumes: []corev1.Volume{ephemeral}, want: []Disk{{"disk-4", "pv-4", "a"}}},
		"two zones": {volumes: []corev1.Volume{use("v", "one"), use("w", "elsewhere")},
			unsupported: "volume w cannot work on a cell: its disk is in zone b"},
		"another driver":        {volumes: []corev1.Volume{use("v", "foreign")}, unsupported: "ebs.csi.aws.com"},
		"another file system":   {volumes: []corev1.Volume{use("v", "xfs")}, unsupported: `"xfs"`},
		"a cloud without disks": {volumes: []corev1.Volume{use("v", "one")}, without: true, unsupported: "has none"},
		"no claim":              {volumes: []corev1.Volume{use("v", "missing")}, notReady: "there is no PersistentVolumeClaim missing"},
		"not bound":             {volumes: []corev1.Volume{use("v", "pending")}, notReady: "PersistentVolumeClaim pending is Pending"},
		"lost":                  {volumes: []corev1.Volume{use("v", "lost")}, notReady: "is Lost"},
		"no volume":             {volumes: []corev1.Volume{use("v", "nowhere")}, notReady: "there is no PersistentVolume pv-none"},
		"another claim's volume": {volumes: []corev1.Volume{use("v", "thief")},
			notReady: "PersistentVolume pv-1, which PersistentVolumeClaim thief names"},
		"nobody's volume": {volumes: []corev1.Volume{use("v", "early")}, notReady: "does not name it in its claimRef"},
		"unsupported and missing": {volumes: []corev1.Volume{use("v", "missing"),
			{Name: "w", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}}}, unsupported: "volume w"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid"}, Spec: corev1.PodSpec{Volumes: tc.volumes}}
			r := Resolver{Client: client.CoreV1()}
			if !tc.without {
				r.Owned = all
			}
			got, err := r.Needs(t.Context(), pod)
			var notReady *NotReadyError
			var unsupported *UnsupportedError
			switch {
			case tc.notReady != "":
				if !errors.As(err, &notReady) || !strings.Contains(err.Error(), tc.notReady) {
					t.Errorf("got %v: want a NotReadyError with %q", err, tc.notReady)
				}
			case tc.unsupported != "":
				if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), tc.unsupported) {
					t.Errorf("got %v: want an UnsupportedError with %q", err, tc.unsupported)
				}
			case err != nil || !reflect.DeepEqual(got, Needs{Disks: tc.want}):
				t.Errorf("got %v, %v: want %v", got, err, tc.want)
			}
		})
	}
	// A claim of the name that an ephemeral volume's would have is somebody else's.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: types.UID("another")},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{ephemeral}}}
	if got, err := (Resolver{Client: client.CoreV1(), Owned: all}).Needs(t.Context(), pod); err == nil {
		t.Errorf("got %v of another pod's claim", got)
	}
}

// No instance is launched for a disk that it would not be given.
func TestAPodWaitsForADiskThatCannotBeAttachedNow(t *testing.T) {
	pv := onDisk("pv-1", "disk-1", "a")
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "uid-c"}
	client := fake.NewClientset(pv, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid-c"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
	}}}}
	for what, tc := range map[string]struct {
		said  error
		waits bool   // it may become possible
		never string // why not, where only another volume helps
	}{
		"free":         {},
		"a cell's":     {said: fmt.Errorf("check: %w", &HeldDiskError{Disk: "disk-1", Instance: "i-cell"})},
		"another's":    {said: fmt.Errorf("check: %w", &HeldDiskError{Disk: "disk-1", Instance: "i-other"}), waits: true},
		"not told":     {said: ErrUntold, waits: true},
		"not answered": {said: errors.New("the cloud is away"), waits: true},
		"broken":       {said: &UnusableDiskError{Disk: "disk-1", Why: errors.New("in state error")}, never: "in state error"},
	} {
		r := Resolver{
			Client:      client.CoreV1(),
			Owned:       all,
			OurInstance: func(instance string) bool { return instance == "i-cell" },
			Attachable: func(_ context.Context, asked Disk) error {
				if asked != (Disk{ID: "disk-1", Volume: "pv-1", Zone: "a"}) {
					t.Errorf("asked about %+v", asked)
				}
				return tc.said
			},
		}
		got, err := r.Needs(t.Context(), pod)
		waits, isWait := errors.AsType[*NotReadyError](err)
		never, isNever := errors.AsType[*UnsupportedError](err)
		switch {
		case isWait != tc.waits || isNever != (tc.never != "") || isNever && !strings.Contains(never.Error(), tc.never):
			t.Errorf("%s: %v", what, err)
		case errors.Is(tc.said, ErrUntold) != errors.Is(err, ErrUntold):
			t.Errorf("%s: whether the cloud is being asked: %v", what, err)
		case isWait && waits.Volume != "v" || (err == nil) != (len(got.Disks) == 1):
			t.Errorf("%s: %v with %v", what, err, got)
		}
	}
}

// A pod gets no disk that was not made for its volume, and does not wait in vain for an
// answer that the cloud has not given.
func TestAVolumeThatNamesAnothersDiskIsRefused(t *testing.T) {
	away := errors.New("the cloud is away")
	pv := onDisk("pv-1", "disk-1", "a")
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "uid-c"}
	client := fake.NewClientset(pv, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid-c"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name:         "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
	}}}}
	for _, answer := range []error{nil, &ForeignDiskError{Volume: "pv-1", Disk: "disk-1"}, away, ErrUntold} {
		r := Resolver{Client: client.CoreV1(), Owned: func(_ context.Context, asked *corev1.PersistentVolume) error {
			if asked.Name != "pv-1" || asked.Spec.ClaimRef.Namespace != "ns" {
				t.Errorf("asked about %v", asked)
			}
			return answer
		}, Attachable: func(context.Context, Disk) error {
			if answer != nil {
				t.Errorf("asked whether a disk can be attached of which it is said: %v", answer)
			}
			return nil
		}}
		got, err := r.Needs(t.Context(), pod)
		unsupported, is := errors.AsType[*UnsupportedError](err)
		switch answer {
		case nil:
			if err != nil || len(got.Disks) != 1 {
				t.Errorf("its own disk: %v, %v", got, err)
			}
		case ErrUntold:
			if untold, is := errors.AsType[*NotReadyError](err); !is || untold.Volume != "v" || !errors.Is(err, ErrUntold) {
				t.Errorf("while the cloud takes its time: %v", err)
			}
		case away:
			if !errors.Is(err, away) || is {
				t.Errorf("without an answer: %v", err)
			}
		default:
			if !is || unsupported.Volume != "v" || !strings.Contains(err.Error(), "PersistentVolume pv-1 names disk disk-1") || len(got.Disks) != 0 {
				t.Errorf("another's disk: %v, %v", got, err)
			}
		}
	}
}
