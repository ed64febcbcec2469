package cloudinit

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
	"github.com/elotl/kip/internal/pki"
)

const (
	hash  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	token = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
)

func doc(kip string) string { return "#cloud-config\n" + kip }

func TestUserDataIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "user-data")
	text := doc("kip:\n  cellID: c-1\n  caHash: \"" + hash + "\"\n  token: " + token + "\nhostname: of-others\n")
	if err := os.WriteFile(path, []byte(text), 0o400); err != nil {
		t.Fatal(err)
	}
	u, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if u.CellID != "c-1" || u.CAHash != hash || u.Token != token {
		t.Errorf("got %+v", u)
	}
}

func TestBadUserDataNamesTheFieldAndNeverTheToken(t *testing.T) {
	good := map[string]string{"cellID": "c-1", "caHash": hash, "token": token}
	with := func(key, value string) string {
		var b strings.Builder
		b.WriteString("kip:\n")
		for _, k := range []string{"cellID", "caHash", "token"} {
			v := good[k]
			if k == key {
				v = value
			}
			if v != "" {
				b.WriteString("  " + k + ": " + v + "\n")
			}
		}
		return doc(b.String())
	}
	for name, c := range map[string]struct{ doc, want string }{
		"no header":        {"kip: {}\n", `first line is not "#cloud-config"`},
		"a script":         {"#!/bin/sh\n", `first line is not "#cloud-config"`},
		"no kip":           {doc("hostname: x\n"), `no key "kip"`},
		"kip is a list":    {doc("kip: [a]\n"), "kip: must be a mapping"},
		"not YAML":         {doc("kip: [\n"), "not a valid YAML mapping line 2"},
		"duplicate":        {doc("kip: {}\nkip: {}\n"), "not a valid YAML"},
		"unknown key":      {with("", "") + "  cellid: c\n", "kip: an unknown key of 6 characters; known are cellID, caHash and token"},
		"cellID missing":   {with("cellID", ""), "kip.cellID"},
		"cellID a path":    {with("cellID", "../x"), "kip.cellID (4 characters): it must be 1 to 63 lower-case letters"},
		"cellID a number":  {with("cellID", "17"), "kip.cellID: must be a string"},
		"cellID too long":  {with("cellID", strings.Repeat("a", 64)), "kip.cellID"},
		"caHash short":     {with("caHash", hash[2:]), "kip.caHash (62 characters)"},
		"caHash upper":     {with("caHash", strings.ToUpper(hash)), "lower-case"},
		"token short":      {with("token", token[1:]), "kip.token: join token (42 characters)"},
		"token padded":     {with("token", token+"="), "kip.token: join token (44 characters)"},
		"token not base64": {with("token", "'*"+token[1:]+"'"), "kip.token"},
		"token an alias":   {with("token", "*"+token[1:]), "not a valid YAML"},
		"token as cellID":  {with("cellID", token), "kip.cellID (43 characters)"},
		"token as caHash":  {with("caHash", token), "kip.caHash (43 characters)"},
		"token as a key":   {with("", "") + "  " + token + ": x\n", "kip: an unknown key of 43 characters"},
		"all wrong":        {doc("kip: {}\n"), "kip.token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.doc), "")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if strings.Contains(err.Error(), token[2:30]) {
				t.Errorf("the token is in the error: %v", err)
			}
		})
	}
}

// batch is user data in its second version, with one field changed or left out.
func batch(key, value string) string {
	fields := [][2]string{{"version", "2"}, {"batch", "launch-a"}, {"caHash", hash}, {"secret", token}}
	text := "kip:\n"
	for _, f := range fields {
		if f[0] == key {
			f[1] = value
		}
		if f[1] != "" {
			text += "  " + f[0] + ": " + f[1] + "\n"
		}
	}
	return doc(text)
}

func TestAMachineOfABatchIsTheCellOfItsPlace(t *testing.T) {
	secret, err := pki.ParseBatchSecret(token)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(path, []byte(batch("", "")), 0o400); err != nil {
		t.Fatal(err)
	}
	if u, err := Read(path); err == nil || !strings.Contains(err.Error(), PlaceFile) {
		t.Fatalf("without its launch index the machine is %+v, %v", u, err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), PlaceFile), []byte("7\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	u, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := (agentapi.UserData{CellID: "launch-a-7", CAHash: hash, Token: secret.Token("launch-a-7").Reveal()}); u != want {
		t.Errorf("got %+v, want %+v", u, want)
	}
	if err := os.WriteFile(path+"-own", []byte(doc("kip:\n  cellID: c-1\n  caHash: "+hash+"\n  token: "+token+"\n")), 0o400); err != nil {
		t.Fatal(err)
	}
	if u, err := Read(path + "-own"); err != nil || u.CellID != "c-1" || u.Token != token {
		t.Errorf("user data of its own, beside a launch index, is %+v, %v", u, err)
	}
}

func TestBadUserDataOfABatchNamesTheFieldAndNeverTheSecret(t *testing.T) {
	for name, c := range map[string]struct{ doc, place, want string }{
		"another version":   {batch("version", "3"), "0", "kip.version: this agent knows 2"},
		"a version as text": {batch("version", "'2'"), "0", "kip.version"},
		"no batch":          {batch("batch", ""), "0", "kip.batch (0 characters)"},
		"batch a path":      {batch("batch", "../x"), "0", "kip.batch (4 characters)"},
		"batch too long":    {batch("batch", strings.Repeat("a", 62)), "0", "kip.batch and launch index (64 characters)"},
		"caHash short":      {batch("caHash", hash[2:]), "0", "kip.caHash (62 characters)"},
		"no secret":         {batch("secret", ""), "0", "kip.secret: secret of a batch"},
		"secret short":      {batch("secret", token[1:]), "0", "kip.secret"},
		"secret as batch":   {batch("batch", token), "0", "kip.batch (43 characters)"},
		"a token besides": {batch("", "") + "  token: " + token + "\n", "0",
			"kip: an unknown key of 5 characters; known are batch, caHash and secret"},
		"no place":        {batch("", ""), "", "the launch index (0 characters in launch-index)"},
		"place a name":    {batch("", ""), "first", "the launch index"},
		"place negative":  {batch("", ""), "-1", "the launch index"},
		"place padded":    {batch("", ""), "01", "the launch index"},
		"secret as place": {batch("", ""), token, "the launch index (43 characters"},
	} {
		_, err := Parse([]byte(c.doc), c.place)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		} else if strings.Contains(err.Error(), token[2:30]) {
			t.Errorf("%s: the secret is in the error: %v", name, err)
		}
	}
}

var (
	cellIDForm = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	hashForm   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	tokenForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
)

// FuzzParse puts a token into a document of whatever else: no error shows it, and
// what is accepted has the forms that others rely on.
func FuzzParse(f *testing.F) {
	const id, ca = "\n  cellID: ", "\n  caHash: "
	for _, around := range [][2]string{
		{"kip:" + id + "c-1" + ca + hash + "\n  token: ", "\n"},
		{"kip:" + id + "c-1" + ca + hash[2:] + "\n  token: ", "\n"},
		{"kip:" + id + "c-1" + ca + strings.ToUpper(hash) + "\n  token: ", "\n"},
		{"kip:" + id + "c-" + ca + hash + "\n  token: ", "\n"},
		{"kip:" + id + "c-1" + ca + hash + "\n  token: ", "=\n"},
		{"hostname: x\nkip:" + id + "../x" + ca + hash[2:] + "\n  token: ", "\nusers: []\n"},
		{"kip:" + id + "c-1" + ca, "\n  token: " + token + "\n"},
		{"kip:" + ca + hash + id, "\n  token: " + token + "\n"},
		{"kip:" + id + "c-1" + ca + hash + "\n  ", ": " + token},
		{"kip: {", ": {a: b}, token: 'x'}\n"},
		{"kip: ", "\n"},
		{"kip: [", "]\n"},
		{"kip: {token: *", "}\n"},
		{"kip: {token: &", " x, token: *x}\n"},
		{"kip: {token: !!binary ", "}\n"},
		{"kip: {token: !", " 'x'}\n"},
		{"", ": x\n"},
		{"kip: {? {", "} : x}\n"},
		{"kip:\n  version: 2\n  batch: b" + ca + hash + "\n  secret: ", "\n"},
		{"kip:\n  version: 2\n  batch: b-" + ca + hash[2:] + "\n  secret: ", "=\n"},
		{"kip:\n  version: ", "\n"},
	} {
		f.Add(around[0], around[1])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		u, err := Parse([]byte(doc(before+token+after)), "7")
		if err != nil {
			if u != (agentapi.UserData{}) {
				t.Errorf("an error and user data: %v", err)
			}
			if strings.Contains(err.Error(), token[2:30]) {
				t.Errorf("the token is in the error: %v", err)
			}
			return
		}
		if !cellIDForm.MatchString(u.CellID) || strings.HasPrefix(u.CellID, "-") || strings.HasSuffix(u.CellID, "-") {
			t.Errorf("accepted the cell ID %q", u.CellID)
		}
		if !hashForm.MatchString(u.CAHash) || !tokenForm.MatchString(u.Token) {
			t.Errorf("accepted %+v", u)
		}
	})
}

func TestWhatIsLeftIsWhatIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "user-data")
	single := doc("kip: {cellID: c-1, caHash: " + hash + ", token: " + token + "}\n")
	for _, tc := range []struct{ document, place, want string }{{batch("", ""), "3", "launch-a-3"}, {single, "", "c-1"}} {
		if err := Leave(path, []byte(tc.document), tc.place); err != nil {
			t.Fatal(err)
		}
		u, err := Read(path)
		info, errs := os.Stat(path)
		if err != nil || u.CellID != tc.want || errs != nil || info.Mode().Perm() != 0o400 {
			t.Errorf("%+v, %v; %v, %v; want cell %s", u, err, info.Mode(), errs, tc.want)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), PlaceFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the place of an earlier start: %v", err)
	}
}

func TestUserDataThatOthersHavePutTogetherIsRead(t *testing.T) {
	ours := doc("kip:\n  cellID: c-1\n  caHash: \"" + hash + "\"\n  token: " + token + "\n")
	squeezed := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write([]byte(s)); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	parts := func(all ...string) string {
		return "Content-Type: multipart/mixed; boundary=b\n\n--b\n\n" + strings.Join(all, "\n--b\n\n") + "\n--b--\n"
	}
	for what, text := range map[string]string{
		"compressed":                    squeezed(ours),
		"a part":                        parts("#!/bin/sh\n", doc("hostname: x\n"), ours),
		"a part of what is compressed":  squeezed(parts("#!/bin/sh\n", ours)),
		"a part that is compressed too": parts(squeezed(doc("x: y\n")), squeezed(ours)),
		"beside parts of other kinds": parts("#include\nhttp://h/", "#cloud-boothook\n#!/bin/sh", "## template: jinja\n#cloud-config\nkip: {}",
			"#part-handler\n", "#cloud-config-archive\n- kip: {}", "words", ours, "#upstart-job\n"),
		"beside what cannot be read": "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Transfer-Encoding: base64\n\n!\n--b\n" +
			"Content-Transfer-Encoding: rot13\n\nx\n--b\nContent-Type: ;\n\nx\n--b\n\n" + ours + "\n--b\n\n\x1f\x8bx\n--b--\n",
		"beside a part of parts": parts(strings.NewReplacer("--b", "--in", "=b", "=in").Replace(parts(ours)), ours),
		"beside a bomb":          parts(squeezed(strings.Repeat("#", 8<<20)), ours, squeezed(doc(strings.Repeat("#\n", maxBytes)))),
		"beside much":            parts(strings.Repeat(squeezed(doc(strings.Repeat("#", maxBytes/2)))+"\n--b\n\n", 3), ours),
	} {
		u, err := Parse([]byte(text), "")
		if err != nil || u != (agentapi.UserData{CellID: "c-1", CAHash: hash, Token: token}) {
			t.Errorf("%s: %+v, %v", what, u, err)
		}
	}
	for what, c := range map[string]struct{ text, want string }{
		"no part of ours":   {parts("#!/bin/sh\n", doc("x: y\n")), `no part is a #cloud-config with the key "kip"`},
		"ours twice":        {parts(ours, ours), `two parts have the key "kip"`},
		"it has no end":     {parts(ours)[:200], "it is neither a document of at most 65536 bytes that gzip made"},
		"too much":          {squeezed(ours + strings.Repeat("#\n", maxBytes)), "of at most 65536 bytes"},
		"only a bomb":       {parts(squeezed(ours + strings.Repeat("#\n", 8<<20))), `no part is a #cloud-config with the key "kip"`},
		"a bomb in a bomb":  {squeezed(squeezed(strings.Repeat("#", 8<<20))), "it is neither a document of at most 65536 bytes that gzip made"},
		"a mistake in ours": {parts(strings.Replace(ours, "c-1", "../x", 1)), "kip.cellID (4 characters)"},
	} {
		if _, err := Parse([]byte(c.text), ""); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
