package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

var (
	// inlineLink is [text](target) or [text](target "title"), also of an image.
	inlineLink = regexp.MustCompile(`\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"]*")?\s*\)`)
	// namedLink is the definition [name]: target.
	namedLink = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	heading   = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*\s*$`)
	fence     = regexp.MustCompile("^\\s*(```|~~~)")
	linkText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// prose calls f with each line of a document that is not in a code block.
func prose(text string, f func(number int, line string)) {
	inFence := ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if m := fence.FindStringSubmatch(line); m != nil {
			switch inFence {
			case "":
				inFence = m[1]
			case m[1]:
				inFence = ""
			}
			continue
		}
		if inFence == "" {
			f(number, line)
		}
	}
}

// anchor is the name by which a heading is linked to, as GitHub makes it.
func anchor(title string) string {
	title = linkText.ReplaceAllString(title, "$1")
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteRune('-')
		}
	}
	return b.String()
}

// anchors are those of all headings of a document.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	prose(text, func(_ int, line string) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			return
		}
		name := anchor(m[1])
		for n := 1; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", anchor(m[1]), n)
		}
		found[name] = true
	})
	return found
}

// deadLinks returns the links of Markdown files that lead to no file, or to no
// heading, of the tree. Links to elsewhere are not looked at.
func deadLinks(tree fs.FS) ([]string, error) {
	documents, err := files(tree, ".md")
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, d := range documents {
		b, err := fs.ReadFile(tree, d)
		if err != nil {
			return nil, err
		}
		texts[d] = string(b)
	}
	var out []string
	for _, d := range documents {
		prose(texts[d], func(number int, line string) {
			line = codeSpan.ReplaceAllString(line, "")
			for _, m := range append(inlineLink.FindAllStringSubmatch(line, -1), namedLink.FindAllStringSubmatch(line, -1)...) {
				if why := dead(tree, texts, d, m[1]); why != "" {
					const rule = "a link between files of this repository leads to one that is there, or a reader is lost"
					out = append(out, fmt.Sprintf("%s:%d: link %s: %s: %s", d, number, m[1], why, rule))
				}
			}
		})
	}
	return out, nil
}

// dead says why a link leads nowhere; "" if it leads somewhere, or elsewhere.
func dead(tree fs.FS, texts map[string]string, from, link string) string {
	u, err := url.Parse(link)
	if err != nil {
		return "it is no URL"
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	target := from
	switch {
	case strings.HasPrefix(u.Path, "/"):
		target = strings.TrimPrefix(path.Clean(u.Path), "/")
	case u.Path != "":
		target = path.Join(path.Dir(from), u.Path)
	}
	if !fs.ValidPath(target) {
		return "it leads out of the repository"
	}
	if _, err := fs.Stat(tree, target); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "there is no " + target
		}
		return err.Error()
	}
	if text, document := texts[target]; document && u.Fragment != "" && !anchors(text)[u.Fragment] {
		return fmt.Sprintf("%s has no heading #%s", target, u.Fragment)
	}
	return ""
}

func TestLinksBetweenDocumentsLeadSomewhere(t *testing.T) {
	tree := os.DirFS(top(t))
	if _, err := fs.Stat(tree, "README.md"); err != nil {
		t.Fatal(err)
	}
	found, err := deadLinks(tree)
	if err != nil {
		t.Fatal(err)
	}
	report(t, found)
}

func TestDeadLinksAreFound(t *testing.T) {
	found, err := deadLinks(fstest.MapFS{
		"README.md": {Data: []byte("# Top\n" +
			"[a](docs/a.md) [gone](docs/gone.md) [b](docs/a.md#the-second-part) [c](docs/a.md#third)\n" +
			"[folder](docs/) [elsewhere](https://example.com/gone.md) `[code](gone.md)` [here](#top) [nowhere](#bottom)\n" +
			"```\n[in a block](gone.md)\n```\n" +
			"[out](../secret.md) [root](/docs/a.md) ![image](docs/gone.png \"title\")\n" +
			"[named]: docs/gone2.md\n")},
		"docs/a.md":        {Data: []byte("# A\n## The second part\n```\n# third\n```\n[up](../README.md)\n[wrong](README.md)\n")},
		"bin/README.md":    {Data: []byte("[not ours](gone.md)\n")},
		".kip/x/README.md": {Data: []byte("[not ours](gone.md)\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, found,
		"README.md:2: link docs/gone.md: there is no docs/gone.md",
		"README.md:2: link docs/a.md#third: docs/a.md has no heading #third",
		"README.md:3: link #bottom: README.md has no heading #bottom",
		"README.md:7: link ../secret.md: it leads out",
		"README.md:7: link docs/gone.png: there is no docs/gone.png",
		"README.md:8: link docs/gone2.md",
		"docs/a.md:7: link README.md: there is no docs/README.md",
	)
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	for title, want := range map[string]string{
		"Why does my pod wait?":       "why-does-my-pod-wait",
		"`kipctl why` and Events":     "kipctl-why-and-events",
		"1. The pod is not scheduled": "1-the-pod-is-not-scheduled",
		"See [there](x.md), too":      "see-there-too",
	} {
		if got := anchor(title); got != want {
			t.Errorf("anchor of %q is %q, want %q", title, got, want)
		}
	}
	if got := anchors("# A\n## A\n"); !got["a"] || !got["a-1"] || len(got) != 2 {
		t.Errorf("two headings of one name have the anchors %v, want a and a-1", got)
	}
}
