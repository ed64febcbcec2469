package cloudinit

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/elotl/kip/internal/agentapi"
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
			_, err := Parse([]byte(c.doc))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
			if strings.Contains(err.Error(), token[2:30]) {
				t.Errorf("the token is in the error: %v", err)
			}
		})
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
	} {
		f.Add(around[0], around[1])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		u, err := Parse([]byte(doc(before + token + after)))
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
