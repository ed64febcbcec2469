package podlogs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Serve answers a kubelet's GET containerLogs for a saved log. Options, status
// codes and what each option means are the kubelet's: tailLines counts from the
// end of the log, sinceSeconds and sinceTime then skip what is older, and
// limitBytes bounds what is written, times included. follow ends at the end of
// the log, for nothing follows.
func (s *Saver) Serve(w http.ResponseWriter, r *http.Request, uid types.UID, container string) {
	options, code, err := parseOptions(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	s.mu.Lock()
	i, known := s.pods[uid]
	s.mu.Unlock()
	if !known {
		// Of a 404 the API server would not hand the text on, and the pod exists.
		http.Error(w, "the pod has ended and its log was not saved, or is no longer kept", http.StatusBadRequest)
		return
	}
	c, known := i.Containers[container]
	if !known {
		http.Error(w, fmt.Sprintf("container %q not found in pod %q", container, i.Name), http.StatusNotFound)
		return
	}
	run, missing := c.Current, fmt.Sprintf("the log of container %q in pod %q could not be read before its cell ended", container, i.Name)
	if options.Previous {
		run, missing = c.Previous, fmt.Sprintf("previous terminated container %q in pod %q not found", container, i.Name)
	}
	if !run.Saved {
		if run.Answer != "" {
			missing = run.Answer
		}
		http.Error(w, missing, http.StatusBadRequest)
		return
	}
	f, err := os.Open(filepath.Join(s.c.Dir, string(uid), logFile(container, options.Previous)))
	if errors.Is(err, os.ErrNotExist) { // removed since
		http.Error(w, "the log is no longer kept", http.StatusBadRequest)
		return
	}
	if err != nil {
		s.c.Log.Error("a saved log cannot be read", "pod", i.Namespace+"/"+i.Name, "container", container, "err", err)
		http.Error(w, "the saved log cannot be read", http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := write(w, func() io.Reader { return run.text(f) }, options, s.c.Clock.Now()); err != nil {
		s.c.Log.Debug("a saved log was not sent in full", "pod", i.Namespace+"/"+i.Name, "container", container, "err", err)
	}
}

// parseOptions reads and checks the query as the kubelet does; the code goes
// with the error.
func parseOptions(query url.Values) (*corev1.PodLogOptions, int, error) {
	// The kubelet still knows the older name of tailLines.
	if tail := query.Get("tail"); tail != "" {
		query.Set("tailLines", tail)
		if tail == "all" {
			query.Del("tailLines")
		}
	}
	o := &corev1.PodLogOptions{}
	for key, values := range query {
		if err := decode(o, key, values); err != nil {
			return nil, http.StatusBadRequest, fmt.Errorf("unable to decode query: %s=%q: %w", key, values, err)
		}
	}
	switch {
	case o.TailLines != nil && *o.TailLines < 0:
		return nil, http.StatusUnprocessableEntity, fmt.Errorf("tailLines: %d must not be negative", *o.TailLines)
	case o.LimitBytes != nil && *o.LimitBytes < 1:
		return nil, http.StatusUnprocessableEntity, fmt.Errorf("limitBytes: %d must be greater than 0", *o.LimitBytes)
	case o.SinceSeconds != nil && o.SinceTime != nil:
		return nil, http.StatusUnprocessableEntity, errors.New("at most one of sinceTime and sinceSeconds may be given")
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		return nil, http.StatusUnprocessableEntity, fmt.Errorf("sinceSeconds: %d must be greater than 0", *o.SinceSeconds)
	case o.Stream != nil && *o.Stream != "" && *o.Stream != corev1.LogStreamAll:
		// As a kubelet without the feature PodLogsQuerySplitStreams.
		return nil, http.StatusBadRequest, fmt.Errorf("stream: a saved log has only %q, not %q", corev1.LogStreamAll, *o.Stream)
	}
	return o, 0, nil
}

// decode sets one option by the rules of the API machinery. A key that is no
// option of a saved log is ignored, as the kubelet ignores what it does not know.
func decode(o *corev1.PodLogOptions, key string, values []string) error {
	switch key {
	case "previous":
		return runtime.Convert_Slice_string_To_bool(&values, &o.Previous, nil)
	case "timestamps":
		return runtime.Convert_Slice_string_To_bool(&values, &o.Timestamps, nil)
	case "tailLines":
		return runtime.Convert_Slice_string_To_Pointer_int64(&values, &o.TailLines, nil)
	case "limitBytes":
		return runtime.Convert_Slice_string_To_Pointer_int64(&values, &o.LimitBytes, nil)
	case "sinceSeconds":
		return runtime.Convert_Slice_string_To_Pointer_int64(&values, &o.SinceSeconds, nil)
	case "sinceTime":
		if len(values) > 0 && values[0] != "" {
			o.SinceTime = &metav1.Time{}
			return o.SinceTime.UnmarshalQueryParameter(values[0])
		}
	case "stream":
		if len(values) > 0 {
			o.Stream = &values[0]
		}
	}
	return nil
}

// write writes a saved log as options ask.
func write(w io.Writer, log func() io.Reader, o *corev1.PodLogOptions, now time.Time) error {
	var since time.Time
	switch {
	case o.SinceTime != nil:
		since = o.SinceTime.Time
	case o.SinceSeconds != nil && *o.SinceSeconds <= int64(math.MaxInt64/time.Second): // else from the beginning
		since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	remain := int64(math.MaxInt64)
	if o.LimitBytes != nil {
		remain = *o.LimitBytes
	}
	if o.TailLines != nil {
		total, err := countLines(log())
		if err != nil {
			return err
		}
		in := bufio.NewReaderSize(log(), 64<<10)
		for skip := total - *o.TailLines; skip > 0; skip-- {
			if err := skipLine(in); err != nil {
				return err
			}
		}
		if *o.TailLines == 0 {
			return nil
		}
		return writeLines(w, in, o.Timestamps, since, remain)
	}
	return writeLines(w, bufio.NewReaderSize(log(), 64<<10), o.Timestamps, since, remain)
}

// writeLines holds no line as a whole: one can be as long as a log.
func writeLines(w io.Writer, in *bufio.Reader, timestamps bool, since time.Time, remain int64) error {
	var last time.Time // of the line before, for lines without
	begins, shown := true, false
	for remain > 0 {
		part, err := in.ReadSlice('\n')
		text := part
		if begins && len(part) > 0 {
			at, without := splitLine(part)
			if at.IsZero() {
				at = last
			}
			last, shown = at, !at.Before(since)
			if !timestamps {
				text = without
			}
		}
		if shown {
			text = text[:min(int64(len(text)), remain)]
			n, err := w.Write(text)
			if err != nil {
				return err
			}
			remain -= int64(n)
		}
		begins = err == nil
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
	return nil
}

// splitLine parts a line into its time and the rest. A line without a time is all
// rest.
func splitLine(line []byte) (time.Time, []byte) {
	stamp, text, found := bytes.Cut(line, []byte{' '})
	if !found {
		// The kubelet writes an empty line as a time, a blank and the end
		// of line; be lenient about the blank.
		stamp, text = bytes.TrimSuffix(line, []byte{'\n'}), line[len(bytes.TrimSuffix(line, []byte{'\n'})):]
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return time.Time{}, line
	}
	return at, text
}

// countLines counts ends of lines, and an unended last line.
func countLines(r io.Reader) (n int64, err error) {
	buf := make([]byte, 64<<10)
	last := byte('\n')
	for {
		k, err := r.Read(buf)
		if k > 0 {
			n += int64(bytes.Count(buf[:k], []byte{'\n'}))
			last = buf[k-1]
		}
		if errors.Is(err, io.EOF) {
			if last != '\n' {
				n++
			}
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func skipLine(in *bufio.Reader) error {
	for {
		_, err := in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}
