package cloudinit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		"unknown key":      {with("", "") + "  cellid: c\n", "kip.cellid: unknown key; known are"},
		"cellID missing":   {with("cellID", ""), "kip.cellID"},
		"cellID a path":    {with("cellID", "../x"), `kip.cellID: cell ID "../x"`},
		"cellID a number":  {with("cellID", "17"), "kip.cellID: must be a string"},
		"cellID too long":  {with("cellID", strings.Repeat("a", 64)), "kip.cellID"},
		"caHash short":     {with("caHash", hash[2:]), "kip.caHash"},
		"caHash upper":     {with("caHash", strings.ToUpper(hash)), "lower-case"},
		"token short":      {with("token", token[1:]), "kip.token: join token (42 characters)"},
		"token padded":     {with("token", token+"="), "kip.token: join token (44 characters)"},
		"token not base64": {with("token", "'*"+token[1:]+"'"), "kip.token"},
		"token an alias":   {with("token", "*"+token[1:]), "not a valid YAML"},
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

func FuzzParse(f *testing.F) {
	f.Add([]byte(doc("kip:\n  cellID: c-1\n")))
	f.Add([]byte(doc("kip: {cellID: c-1, caHash: " + hash + ", token: " + token + "}\n")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if u, err := Parse(b); err == nil && len(check(u)) > 0 {
			t.Errorf("accepted %+v", u)
		}
	})
}
