package stats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	summaryName      = "summary"
	summaryPath      = "/stats/summary"
	onlyCPUParameter = "only_cpu_and_memory"
	onlyCPU          = "?" + onlyCPUParameter + "=true"
)

// summaries merges summaries; between gatherings it keeps the node's CPU time.
type summaries struct {
	node  string
	since time.Time
	cpu   count // nanoseconds
}

func newSummaries(node string, since time.Time) *summaries {
	return &summaries{node: node, since: since}
}

func (s *summaries) begin(now time.Time) merger { return &summaryMerger{summaries: s, now: now} }

// summaryMerger merges the summaries of one gathering.
type summaryMerger struct {
	*summaries
	now  time.Time
	size atomic.Int64

	mu   sync.Mutex
	pods pile
	sum  statsapi.NodeStats
}

func (m *summaryMerger) held() int { return int(m.size.Load()) }

// unreadableYears are in times that are written, and that nobody can read: with them the
// summary of all is lost. A cell can have them, in another time zone than UTC.
var unreadableYears = [][]byte{[]byte(`"10000-01-0`), []byte(`"-0001-12-3`)}

// mostValues is how many values a summary may have. Three bytes can be an entry of a list, which takes some
// 200 as it is read. A kubelet writes some 250 values in all for a pod of one container, and some 50 for each more.
const mostValues = 1 << 16

// readSummary reads what a cell answers.
func readSummary(body []byte) (*statsapi.Summary, error) {
	if bytes.Count(body, []byte{','}) >= mostValues {
		return nil, fmt.Errorf("%w: it has more than %d values", errTooLarge, mostValues)
	}
	s := &statsapi.Summary{}
	if err := json.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return s, nil
}

func (m *summaryMerger) add(c *Cell, body []byte) error {
	s, err := readSummary(body)
	if err != nil {
		return err
	}
	var pod []byte
	for i := range s.Pods {
		if ref := s.Pods[i].PodRef; ref.Namespace != c.Namespace || ref.Name != c.Pod || ref.UID != string(c.UID) {
			continue
		}
		if pod, err = json.Marshal(&s.Pods[i]); err != nil {
			return fmt.Errorf("%w: %w", errInvalid, err)
		}
		for _, year := range unreadableYears {
			if bytes.Contains(pod, year) {
				return fmt.Errorf("%w: it has a time beyond the years 0 to 9999", errInvalid)
			}
		}
		break // a cell has one pod
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if pod != nil {
		if !m.pods.empty() {
			pod = append([]byte{','}, pod...)
		}
		m.size.Add(int64(m.pods.add(pod)))
	}
	m.addNode(c, &s.Node)
	return nil
}

// addNode adds, under mu, what a cell has of what can be summed: not its network
// and its faults, which count from its start, nor what depends on the machine.
func (m *summaryMerger) addNode(c *Cell, n *statsapi.NodeStats) {
	memory := c.Machine.memory()
	if n.CPU != nil {
		if m.sum.CPU == nil {
			m.sum.CPU = &statsapi.CPUStats{}
		}
		m.latest(&m.sum.CPU.Time, n.CPU.Time)
		plus(&m.sum.CPU.UsageNanoCores, n.CPU.UsageNanoCores, 1e9*c.Machine.cores())
		if v := n.CPU.UsageCoreNanoSeconds; v != nil {
			m.cpu.add(c.ID, float64(*v), 1e9*c.Machine.coreSeconds(m.now))
		}
	}
	if n.Memory != nil {
		if m.sum.Memory == nil {
			m.sum.Memory = &statsapi.MemoryStats{}
		}
		m.latest(&m.sum.Memory.Time, n.Memory.Time)
		plus(&m.sum.Memory.AvailableBytes, n.Memory.AvailableBytes, memory)
		plus(&m.sum.Memory.UsageBytes, n.Memory.UsageBytes, memory)
		plus(&m.sum.Memory.WorkingSetBytes, n.Memory.WorkingSetBytes, memory)
		plus(&m.sum.Memory.RSSBytes, n.Memory.RSSBytes, memory)
	}
	if n.Swap != nil {
		if m.sum.Swap == nil {
			m.sum.Swap = &statsapi.SwapStats{}
		}
		m.latest(&m.sum.Swap.Time, n.Swap.Time)
		plus(&m.sum.Swap.SwapAvailableBytes, n.Swap.SwapAvailableBytes, maxDisk)
		plus(&m.sum.Swap.SwapUsageBytes, n.Swap.SwapUsageBytes, maxDisk)
	}
	m.plusFs(&m.sum.Fs, n.Fs)
	if n.Runtime != nil {
		if m.sum.Runtime == nil {
			m.sum.Runtime = &statsapi.RuntimeStats{}
		}
		m.plusFs(&m.sum.Runtime.ImageFs, n.Runtime.ImageFs)
		m.plusFs(&m.sum.Runtime.ContainerFs, n.Runtime.ContainerFs)
	}
}

func (m *summaryMerger) plusFs(sum **statsapi.FsStats, n *statsapi.FsStats) {
	if n == nil {
		return
	}
	if *sum == nil {
		*sum = &statsapi.FsStats{}
	}
	m.latest(&(*sum).Time, n.Time)
	plus(&(*sum).AvailableBytes, n.AvailableBytes, maxDisk)
	plus(&(*sum).CapacityBytes, n.CapacityBytes, maxDisk)
	plus(&(*sum).UsedBytes, n.UsedBytes, maxDisk)
	plus(&(*sum).InodesFree, n.InodesFree, maxInodes)
	plus(&(*sum).Inodes, n.Inodes, maxInodes)
	plus(&(*sum).InodesUsed, n.InodesUsed, maxInodes)
}

// plus adds what a cell can have: more than most is no part of the sum.
func plus(sum **uint64, v *uint64, most float64) {
	if v == nil || float64(*v) > most {
		return
	}
	if *sum == nil {
		*sum = new(uint64)
	}
	**sum += *v
}

// latest takes the later time. The clock of a cell is not believed where it is ahead.
func (m *summaryMerger) latest(t *metav1.Time, u metav1.Time) {
	if u.After(m.now) {
		u = metav1.NewTime(m.now)
	}
	if year := u.UTC().Year(); year >= 0 && year <= 9999 && t.Before(&u) { // others cannot be read
		*t = u
	}
}

func (m *summaryMerger) end(cells []Cell) (*answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cpu.forget(cells)
	m.sum.NodeName, m.sum.StartTime = m.node, metav1.NewTime(m.since)
	if m.sum.CPU != nil {
		total := uint64(m.cpu.total)
		m.sum.CPU.UsageCoreNanoSeconds = &total
	}
	node, err := json.Marshal(&m.sum)
	if err != nil {
		return nil, fmt.Errorf("write the summary of the node: %w", err)
	}
	head := append(append([]byte(`{"node":`), node...), `,"pods":[`...)
	return &answer{contentType: "application/json", parts: []part{{head, &m.pods}, {head: []byte("]}")}}}, nil
}
