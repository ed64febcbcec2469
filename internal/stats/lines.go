package stats

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// What is read of one cell's text, all of it far above what a kubelet writes: cAdvisor has some 90
// families, with ten labels at most. The parser's time grows with the square of a line's labels.
const (
	mostLine     = 16 << 10 // bytes
	mostLabels   = 32       // of a line
	mostHelp     = 1 << 10  // bytes of a comment
	mostFamilies = 500
)

// ownLines are the lines about the cell's pod, or the node, and the comments on families. To leave out
// the others saves work: most of cAdvisor's series are about the machine. What is left
// is parsed, and looked at again.
func (m *textMerger) ownLines(c *Cell, body []byte) ([]byte, error) {
	pod, namespace := []byte(`pod="`+c.Pod+`"`), []byte(`namespace="`+c.Namespace+`"`)
	out := body[:0] // a line moves forward only
	comments := 0
	for line := range bytes.Lines(body) {
		keep := false
		switch {
		case len(line) > mostLine:
		case line[0] == '#':
			if keep = isComment(line); keep {
				comments++
			}
		case bytes.Contains(line, pod) && bytes.Contains(line, namespace):
			keep = oneOfEach(line) && isSample(line)
		default:
			keep = m.isOfNode(line) && isSample(line)
		}
		if keep {
			out = append(out, line...)
		}
	}
	if comments > 2*mostFamilies { // each has its help and its type
		return nil, fmt.Errorf("%w: it has more than %d families", errInvalid, mostFamilies)
	}
	return out, nil
}

func (m *textMerger) isOfNode(line []byte) bool {
	for i := range m.textEndpoint.node {
		if bytes.HasPrefix(line, []byte(m.textEndpoint.node[i].name)) {
			return true
		}
	}
	return false
}

// isComment says whether a line is one on a family, of which each reader reads as much.
func isComment(line []byte) bool {
	return len(line) <= mostHelp && (bytes.HasPrefix(line, []byte("# HELP ")) || bytes.HasPrefix(line, []byte("# TYPE "))) && isText(line)
}

// isText says that a line is text without control characters, at which Prometheus' reader may end.
func isText(line []byte) bool {
	for _, b := range bytes.TrimSuffix(line, []byte("\n")) {
		if b < ' ' || b == 0x7f {
			return false
		}
	}
	return utf8.Valid(line)
}

// Owners are the labels that say whose a series is, as metrics-server looks for them: it takes the first
// place in a line where one stands, even at the end of another label's name (parseContainerLabels in its
// pkg/scraper/client/resource).
var podOwner, namespaceOwner, containerOwner = []byte(`pod="`), []byte(`namespace="`), []byte(`container="`)

// oneOfEach says that a line has one place only where each owner is read.
func oneOfEach(line []byte) bool {
	return bytes.Count(line, podOwner) == 1 && bytes.Count(line, namespaceOwner) == 1 && bytes.Count(line, containerOwner) <= 1
}

// isSample says whether a line is a sample as a kubelet writes them: its name first, its labels in
// braces, its value, and its time, if it has one. Some readers take more, each in its own way, and
// Prometheus refuses all of an answer for one line that it cannot read: a time before 1970 will do.
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/, and the lexer of Prometheus'
// model/textparse.
func isSample(line []byte) bool {
	if !isText(line) {
		return false
	}
	rest := afterName(bytes.TrimSuffix(line, []byte("\n")), true)
	if after, has := bytes.CutPrefix(rest, []byte("{")); has {
		rest = afterLabels(after)
	}
	rest, spaced := bytes.CutPrefix(rest, []byte(" "))
	value, at, timed := bytes.Cut(rest, []byte(" "))
	return spaced && isValue(value) && (!timed || isNumber(at))
}

// isValue says whether text may be a number as they are written, or +Inf or NaN: the parser knows.
func isValue(text []byte) bool {
	return len(text) > 0 && !bytes.ContainsFunc(text, func(r rune) bool {
		return r != '+' && r != '-' && r != '.' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// afterName is what follows a name; nil where there is none.
func afterName(line []byte, colons bool) []byte {
	for i, b := range line {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', b == '_', colons && b == ':', i > 0 && '0' <= b && b <= '9':
			continue
		case i == 0:
			return nil
		}
		return line[i:]
	}
	return nil
}

// afterLabels is what follows labels and the brace that closes them; nil where that is something else.
func afterLabels(rest []byte) []byte {
	for n := 0; ; n++ {
		if after, closed := bytes.CutPrefix(rest, []byte("}")); closed {
			return after
		}
		value, is := bytes.CutPrefix(afterName(rest, false), []byte(`="`))
		if !is || n == mostLabels {
			return nil
		}
		rest = afterValue(value)
		if after, more := bytes.CutPrefix(rest, []byte(",")); more {
			rest = after
		} else if !bytes.HasPrefix(rest, []byte("}")) {
			return nil
		}
	}
}

// afterValue is what follows a label's value and the quote that closes it; nil where none does.
func afterValue(rest []byte) []byte {
	for {
		i := bytes.IndexAny(rest, `"\`)
		switch {
		case i < 0:
			return nil
		case rest[i] == '"':
			return rest[i+1:]
		case i+1 == len(rest) || !bytes.Contains([]byte(`"\n`), rest[i+1:i+2]):
			return nil
		}
		rest = rest[i+2:]
	}
}

func isNumber(text []byte) bool {
	return len(text) > 0 && !bytes.ContainsFunc(text, func(r rune) bool { return r < '0' || r > '9' })
}
