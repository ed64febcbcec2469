package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// These tests need neither Terraform nor its providers: docs/terraform.md says what they leave open.

// A configuration is a folder of Terraform.
type configuration struct {
	folder string
	// bodies are what it declares, by address: var.NAME, local.NAME, output.NAME, provider.NAME, data.TYPE.NAME, TYPE.NAME.
	bodies map[string]*hclsyntax.Body
	// providers are those that it requires.
	providers []string
}

// folders are the folders of Terraform in the repository.
func folders(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(top, "deploy/terraform-*"))
	if err != nil || len(found) < 2 {
		t.Fatal(found, err)
	}
	return found
}

func readConfiguration(t *testing.T, folder string) *configuration {
	t.Helper()
	c, err := loadConfiguration(folder)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func loadConfiguration(folder string) (*configuration, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.tf"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%s has the files %v: %w", folder, files, err)
	}
	c := &configuration{folder: folder, bodies: map[string]*hclsyntax.Body{}}
	for _, path := range files {
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := c.add(source, filepath.Base(path)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// add adds what a file declares.
func (c *configuration) add(source []byte, name string) error {
	file, diags := hclparse.NewParser().ParseHCL(source, name)
	if diags.HasErrors() {
		return diags
	}
	for _, block := range file.Body.(*hclsyntax.Body).Blocks {
		switch block.Type {
		case "terraform":
			for _, inner := range block.Body.Blocks {
				c.providers = slices.AppendSeq(c.providers, maps.Keys(inner.Body.Attributes))
			}
		case "locals":
			for name, attribute := range block.Body.Attributes {
				c.declare("local."+name, &hclsyntax.Body{Attributes: hclsyntax.Attributes{"value": attribute}})
			}
		case "variable":
			c.declare("var."+block.Labels[0], block.Body)
		case "resource":
			c.declare(strings.Join(block.Labels, "."), block.Body)
		case "data", "output", "provider":
			c.declare(block.Type+"."+strings.Join(block.Labels, "."), block.Body)
		default:
			return fmt.Errorf("%s: this test does not know blocks of type %s", block.DefRange(), block.Type)
		}
	}
	return nil
}

func (c *configuration) declare(address string, body *hclsyntax.Body) {
	if c.bodies[address] != nil {
		address += " declared twice"
	}
	c.bodies[address] = body
}

// ignored is the attribute of lifecycle that names attributes of the resource itself.
const ignored = "ignore_changes"

// references returns what the expressions of a body refer to.
func references(body *hclsyntax.Body) (all []hcl.Traversal) {
	for name, attribute := range body.Attributes {
		if name == ignored {
			continue
		}
		all = append(all, hclsyntax.Variables(attribute.Expr)...)
	}
	for _, block := range body.Blocks {
		all = append(all, references(block.Body)...)
	}
	return all
}

// addressOf returns the address that a reference names, or nothing for what Terraform itself declares, such as types.
func addressOf(reference hcl.Traversal) string {
	root, parts := reference.RootName(), 2
	switch root {
	case "each", "count", "self", "path", "terraform", "string", "number", "bool", "any":
		return ""
	case "data":
		parts = 3
	}
	names := []string{root}
	for _, step := range reference[1:] {
		if attribute, ok := step.(hcl.TraverseAttr); ok && len(names) < parts {
			names = append(names, attribute.Name)
		}
	}
	return strings.Join(names, ".")
}

// isResource reports whether an address is that of a resource.
func isResource(address string) bool {
	kind, _, _ := strings.Cut(address, ".")
	return !slices.Contains([]string{"var", "local", "output", "provider", "data"}, kind)
}

// provider returns the provider of a resource or data source, or nothing for those that are Terraform's own.
func provider(address string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(address, "data."), "_")
	if name == "terraform" {
		return ""
	}
	return name
}

// problems returns what refers to nothing, what nothing refers to, and resources without a provider.
func (c *configuration) problems() (all []string) {
	used := map[string]bool{}
	for address, body := range c.bodies {
		if strings.HasSuffix(address, " declared twice") {
			all = append(all, address)
		}
		for _, reference := range references(body) {
			to := addressOf(reference)
			used[to] = used[to] || to != address // a variable's validation is no use of it
			if to != "" && c.bodies[to] == nil {
				all = append(all, fmt.Sprintf("%s: %s refers to %s, which is not declared", reference.SourceRange(), address, to))
			}
		}
		if isResource(address) || strings.HasPrefix(address, "data.") {
			if p := provider(address); p != "" && !slices.Contains(c.providers, p) {
				all = append(all, fmt.Sprintf("%s needs the provider %s, which is not required", address, p))
			}
		}
	}
	for address := range c.bodies {
		if !used[address] && !isResource(address) && !strings.HasPrefix(address, "output.") && !strings.HasPrefix(address, "provider.") {
			all = append(all, address+" is not used")
		}
	}
	slices.Sort(all)
	return all
}

// reach adds all that something depends on, with what its provider needs.
func (c *configuration) reach(address string, reached map[string]bool) {
	if reached[address] || c.bodies[address] == nil {
		return
	}
	reached[address] = true
	for _, reference := range references(c.bodies[address]) {
		c.reach(addressOf(reference), reached)
	}
	if isResource(address) {
		c.reach("provider."+provider(address), reached)
	}
}

// values returns the values for the chart, with those of the example for variables, and a text for what is not known.
func (c *configuration) values(t *testing.T) map[string]any {
	t.Helper()
	value, err := c.evaluate("local.values", example(t, c.folder))
	if err != nil {
		t.Fatal(err)
	}
	value, err = cty.Transform(value, func(_ cty.Path, v cty.Value) (cty.Value, error) {
		if !v.IsKnown() {
			return cty.StringVal("made-by-apply"), nil
		}
		return v, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := ctyjson.SimpleJSONValue{Value: value}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// data are what data sources have that is known here: on an instance type of Intel or AMD.
var data = cty.ObjectVal(map[string]cty.Value{"aws_ec2_instance_type": cty.ObjectVal(map[string]cty.Value{"cells": cty.ObjectVal(
	map[string]cty.Value{"supported_architectures": cty.ListVal([]cty.Value{cty.StringVal("i386"), cty.StringVal("x86_64")})})})})

// evaluate returns the value of a local. What resources and other data sources have is not known.
func (c *configuration) evaluate(local string, variables map[string]cty.Value) (cty.Value, error) {
	body := c.bodies[local]
	if body == nil {
		return cty.NilVal, fmt.Errorf("%s is not declared", local)
	}
	locals := map[string]cty.Value{}
	roots := map[string]cty.Value{"var": cty.ObjectVal(variables)}
	for _, reference := range references(body) {
		address := addressOf(reference)
		name, isLocal := strings.CutPrefix(address, "local.")
		switch {
		case isLocal:
			value, err := c.evaluate(address, variables)
			if err != nil {
				return cty.NilVal, err
			}
			locals[name] = value
		case reference.RootName() == "data" && strings.HasPrefix(address, "data.aws_ec2_instance_type."):
			roots["data"] = data
		case reference.RootName() != "var":
			roots[reference.RootName()] = cty.DynamicVal
		}
	}
	roots["local"] = cty.ObjectVal(locals)
	value, diags := body.Attributes["value"].Expr.Value(&hcl.EvalContext{
		Variables: roots,
		Functions: map[string]function.Function{"contains": stdlib.ContainsFunc},
	})
	if diags.HasErrors() {
		return cty.NilVal, errors.Join(diags.Errs()...)
	}
	return value, nil
}

// example returns the values in env.tfvars.example.
func example(t *testing.T, folder string) map[string]cty.Value {
	t.Helper()
	values, err := variables(filepath.Join(folder, "env.tfvars.example"))
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// variables returns the values in a file that -var-file names.
func variables(path string) (map[string]cty.Value, error) {
	file, diags := hclparse.NewParser().ParseHCLFile(path)
	if diags.HasErrors() {
		return nil, diags
	}
	attributes, diags := file.Body.JustAttributes()
	if diags.HasErrors() {
		return nil, diags
	}
	values := map[string]cty.Value{}
	for name, attribute := range attributes {
		value, diags := attribute.Expr.Value(nil)
		if diags.HasErrors() {
			return nil, diags
		}
		values[name] = value
	}
	return values, nil
}

func TestTerraformIsFormatted(t *testing.T) {
	for _, folder := range folders(t) {
		for _, pattern := range []string{"*.tf", "*.tfvars.example"} {
			files, err := filepath.Glob(filepath.Join(folder, pattern))
			if err != nil || len(files) == 0 {
				t.Fatal(folder, pattern, err)
			}
			for _, path := range files {
				source, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(hclwrite.Format(source), source) {
					t.Errorf("%s is not formatted: terraform fmt", path)
				}
			}
		}
	}
}

func TestTerraformDeclaresWhatItRefersTo(t *testing.T) {
	for _, folder := range folders(t) {
		for _, problem := range readConfiguration(t, folder).problems() {
			t.Errorf("%s: %s", folder, problem)
		}
	}
}

// The test above would see these.
func TestProblemsOfTerraformAreNamed(t *testing.T) {
	c := &configuration{bodies: map[string]*hclsyntax.Body{}}
	err := c.add([]byte(`
terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}
variable "cidr" {
  validation { condition = var.cidr != "" }
}
variable "names" {}
locals {
  upper = [for name in var.names : upper(name)]
}
data "aws_partition" "here" {}
resource "aws_vpc" "kip" {
  count = length(local.upper)
  tags  = { Name = "${var.nmae}-${data.aws_partition.there.partition}" }
  timeouts { create = aws_subnet.kip[count.index].id }
}
resource "google_network" "kip" {}
`), "main.tf")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(c.problems(), "\n")
	for _, want := range []string{
		"aws_vpc.kip refers to var.nmae, which is not declared",
		"aws_vpc.kip refers to data.aws_partition.there, which is not declared",
		"aws_vpc.kip refers to aws_subnet.kip, which is not declared",
		"google_network.kip needs the provider google",
		"data.aws_partition.here is not used",
		"var.cidr is not used",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no problem says %q in:\n%s", want, got)
		}
	}
	if n := len(c.problems()); n != 6 {
		t.Errorf("%d problems: want 6:\n%s", n, got)
	}
}

// The example has each variable with its default, of the right type, and the page names each variable and output.
func TestTerraformsVariablesAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "docs/terraform.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders(t) {
		c, values := readConfiguration(t, folder), example(t, folder)
		for address, body := range c.bodies {
			kind, name, _ := strings.Cut(address, ".")
			if kind != "var" && kind != "output" {
				continue
			}
			if body.Attributes["description"] == nil {
				t.Errorf("%s: %s has no description", folder, address)
			}
			if !bytes.Contains(page, []byte("| `"+name+"` |")) {
				t.Errorf("%s: docs/terraform.md has no row for %s", folder, address)
			}
			if kind == "output" {
				continue
			}
			value, found := values[name]
			delete(values, name)
			if !found || body.Attributes["type"] == nil {
				t.Errorf("%s: %s has no type, or is not in env.tfvars.example", folder, address)
				continue
			}
			if err := isDefault(body, value); err != nil {
				t.Errorf("%s: %s in env.tfvars.example: %v", folder, address, err)
			}
		}
		for name := range values {
			t.Errorf("%s: env.tfvars.example has %s, which is no variable", folder, name)
		}
	}
}

// isDefault returns an error unless a value is of the type of a variable, and its default if it has one.
func isDefault(variable *hclsyntax.Body, value cty.Value) error {
	kind, diags := typeexpr.TypeConstraint(variable.Attributes["type"].Expr)
	if diags.HasErrors() {
		return diags
	}
	value, err := convert.Convert(value, kind)
	if err != nil || variable.Attributes["default"] == nil {
		return err
	}
	usual, diags := variable.Attributes["default"].Expr.Value(nil)
	if diags.HasErrors() {
		return diags
	}
	if usual, err = convert.Convert(usual, kind); err != nil {
		return err
	}
	if !usual.RawEquals(value) {
		return errors.New("it is not the default")
	}
	return nil
}

// Terraform destroys first what depends on all else. Kip's release is that: it ends the cells, for which it needs its role and
// the network, and which else keep the network from being deleted.
func TestTerraformDestroysKipFirst(t *testing.T) {
	c, reached := readConfiguration(t, filepath.Join(top, "deploy/terraform-aws")), map[string]bool{}
	const release = "helm_release.kip"
	c.reach(release, reached)
	for address := range c.bodies {
		if isResource(address) && !reached[address] {
			t.Errorf("%s does not depend on %s, which may be destroyed before it", release, address)
		}
	}
	if len(reached) < 20 {
		t.Errorf("%s depends on no more than %v", release, reached)
	}
}

// The list of available zones changes by itself. What has a zone would be replaced by that.
func TestTerraformMovesNothingToAnotherZone(t *testing.T) {
	const zone, want = "availability_zone", "lifecycle { ignore_changes = [availability_zone] }"
	for _, folder := range folders(t) {
		zoned := 0
		for address, body := range readConfiguration(t, folder).bodies {
			if !isResource(address) || body.Attributes[zone] == nil {
				continue
			}
			zoned++
			kept := slices.ContainsFunc(body.Blocks, func(b *hclsyntax.Block) bool {
				names := b.Body.Attributes[ignored]
				return b.Type == "lifecycle" && names != nil &&
					slices.ContainsFunc(hclsyntax.Variables(names.Expr), func(n hcl.Traversal) bool { return n.RootName() == zone })
			})
			if !kept {
				t.Errorf("%s: another zone replaces %s: want %s", folder, address, want)
			}
		}
		if zoned < 2 {
			t.Errorf("%s: %d resources have a zone", folder, zoned)
		}
	}
}

func TestTheChartTakesTheValuesOfTerraform(t *testing.T) {
	chart, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders(t) {
		values := readConfiguration(t, folder).values(t)
		outputs, err := release{name: "kip", namespace: "kip-system", values: values}.renderAll(chart)
		if err != nil {
			t.Errorf("%s: %v", folder, err)
			continue
		}
		configMap := outputs["configmap"]
		switch filepath.Base(folder) {
		case "terraform-aws":
			if !strings.Contains(outputs["hooks"], "--force") {
				t.Errorf("the release does not end cells when it is uninstalled:\n%s", outputs["hooks"])
			}
			if !strings.Contains(outputs["rbac"], "eks.amazonaws.com/role-arn: made-by-apply") {
				t.Errorf("the service account has no role:\n%s", outputs["rbac"])
			}
			if job := outputs["bootimage"]; !strings.Contains(job, "--arch=amd64") || !strings.Contains(job,
				"eks.amazonaws.com/role-arn: made-by-apply") {
				t.Errorf("no Job publishes the boot image:\n%s", job)
			}
			if !strings.Contains(configMap, "subnetID: made-by-apply") {
				t.Errorf("cells have no subnet:\n%s", configMap)
			}
		case "terraform-vpn":
			if !strings.Contains(configMap, "privateIPOnly: true") || !strings.Contains(configMap, "192.168.0.0/24") {
				t.Errorf("Kip does not dial cells through the VPN:\n%s", configMap)
			}
		}
	}
}

// The claim that Terraform makes is the one that Kip's StatefulSet looks for, and the role's trust names Kip's service account.
func TestTerraformNamesWhatTheChartMakes(t *testing.T) {
	chart, err := loadChart(top)
	if err != nil {
		t.Fatal(err)
	}
	c := readConfiguration(t, filepath.Join(top, "deploy/terraform-aws"))
	outputs, err := release{name: "kip", namespace: "kip-system", values: c.values(t)}.render(chart)
	if err != nil {
		t.Fatal(err)
	}
	var kip appsv1.StatefulSet
	if err := yaml.Unmarshal([]byte(documents(string(outputs["workload"]))[0]), &kip); err != nil {
		t.Fatal(err)
	}
	account, err := c.evaluate("local.service_account", nil)
	if err != nil {
		t.Fatal(err)
	}
	if is := kip.Spec.Template.Spec.ServiceAccountName; is != account.AsString() {
		t.Errorf("Kip runs as %s, and the role trusts %s", is, account.AsString())
	}
	publisher, err := c.evaluate("local.publisher", nil)
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := release{name: "kip", namespace: "kip-system", values: c.values(t)}.renderAll(chart)
	if err != nil {
		t.Fatal(err)
	}
	if job := documents(hooks["bootimage"]); len(job) != 2 || !strings.Contains(job[1], "serviceAccountName: "+publisher.AsString()+"\n") {
		t.Errorf("the boot image's Job does not run as %s, whom its role trusts:\n%s", publisher.AsString(), job)
	}
	if !slices.Contains(kip.Spec.Template.Spec.Containers[0].Args, "--nodename=kip-0") {
		t.Errorf("the virtual node is not kip-0: %v", kip.Spec.Template.Spec.Containers[0].Args)
	}
	if len(kip.Spec.VolumeClaimTemplates) != 1 {
		t.Fatalf("Kip has %d claims", len(kip.Spec.VolumeClaimTemplates))
	}
	want := kip.Spec.VolumeClaimTemplates[0].Name + "-" + kip.Name + "-0"
	name, diags := c.bodies["kubernetes_persistent_volume_claim_v1.store"].Blocks[0].Body.Attributes["name"].Expr.Value(nil)
	if diags.HasErrors() || name.AsString() != want {
		t.Errorf("Terraform makes the claim %v (%v): want %s", name, diags, want)
	}
}
