// Package services_test reads the source of this repository and holds it to the
// rules of the house (ARCHITECTURE.md). The compiler keeps one service's
// internals from another; the rest is kept here, each rule with its reason.
package services_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module    = "github.com/tocsin/tocsin/"
	here      = module + "services/"
	generated = module + "proto/gen/"
)

// servicePackages are the four services. Only cmd joins them.
var servicePackages = []string{"archiver", "console", "gateway", "monitor"}

// purePackages decide; everything that is decided anywhere is decided in them.
var purePackages = []string{
	"gateway/internal/account",
	"gateway/internal/schedule",
	"monitor/internal/deadline",
	"monitor/internal/device",
}

// inner are packages that are not pure, yet that the adapters of their service
// may import, each with why.
var inner = map[string]string{
	"console/internal/readmodel": "it is what the console knows: it is told, and asked by those who show it",
}

// pureImports is all of the standard library that a pure package may use: what
// computes, and neither waits, reads, writes, logs, nor draws lots.
var pureImports = []string{
	"bytes", "cmp", "container/heap", "crypto/sha256", "encoding/base64", "encoding/binary", "encoding/hex", "errors", "fmt",
	"hash/maphash", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8",
}

// clock is what package time has beyond types and arithmetic.
var clock = []string{"After", "AfterFunc", "LoadLocation", "Local", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// seesGenerated are the packages that see generated messages, each with why:
// what is kept or sent as protobuf is made and read in few places, so that a
// change of a message has few places to go.
var seesGenerated = map[string]string{
	"internal/codec":             "it is where events turn into bytes and back",
	"internal/settings":          "it turns a settings file into the messages that are kept",
	"internal/consume":           "it keeps a partition's position",
	"archiver":                   "it joins feeds and publishing with codec's events",
	"archiver/internal/feeds":    "it makes events, for codec to encode",
	"archiver/internal/known":    "it remembers the last status of each device",
	"archiver/internal/publish":  "it publishes events that codec encodes",
	"archiver/internal/beacon":   "it makes heartbeats, for codec to encode",
	"monitor":                    "it replays the events that codec reads",
	"monitor/internal/partition": "it is the edge of the device machine: events in, notifications and states out",
	"monitor/internal/changelog": "it reads and writes the device machine's state",
	"monitor/internal/settings":  "it reads the settings of devices",
	"gateway":                    "it joins the ledger and the mailer by the outbox's messages",
	"gateway/internal/ledger":    "it is the edge of the account machine: notifications in, outbox, deliveries and states out",
	"gateway/internal/settings":  "it reads the settings of accounts",
	"gateway/internal/mailer":    "it sends the mails of the outbox and returns results",
	"gateway/internal/render":    "it renders the mails of the outbox",
	"console":                    "it joins the read model and the API",
	"console/internal/api":       "it answers with settings",
	"console/internal/follow":    "it reads every topic",
	"console/internal/readmodel": "it keeps what the topics say",
	"console/internal/store":     "it reads and writes settings",
	"console/internal/web":       "it shows states, notifications and outcomes in words",
	"cmd/tocsin":                 "its commands read and print events, notifications and mails",
}

// foreign are modules that we do without.
var foreign = map[string]string{
	"github.com/stretchr/testify": "the standard testing package and go-cmp say the same, and failures say what they compare",
	"github.com/golang/mock":      "a generated mock tests calls; a fake or the real thing tests what comes out",
	"go.uber.org/mock":            "a generated mock tests calls; a fake or the real thing tests what comes out",
	"github.com/pkg/errors":       "the standard library wraps errors",
	"github.com/sirupsen/logrus":  "log/slog is the logger",
	"go.uber.org/zap":             "log/slog is the logger",
}

// emptyNames are package names that say nothing about what is in them.
var emptyNames = []string{"base", "common", "helper", "helpers", "lib", "manager", "misc", "model", "models", "shared", "types", "util", "utils"}

// source is one Go file.
type source struct {
	path string // from the directory of this file, with slashes; ../ is outside the module
	file *ast.File
	fset *token.FileSet
}

func (s source) dir() string   { return path.Dir(s.path) }
func (s source) isTest() bool  { return strings.HasSuffix(s.path, "_test.go") }
func (s source) ours() bool    { return !strings.HasPrefix(s.path, "../") }
func (s source) pure() bool    { return slices.Contains(purePackages, s.dir()) }
func (s source) double() bool  { return strings.HasSuffix(s.file.Name.Name, "test") }
func (s source) command() bool { return s.file.Name.Name == "main" }

// service is the service whose room the file is in, "" for cmd and internal.
func (s source) service() string {
	top, _, _ := strings.Cut(s.path, "/")
	if slices.Contains(servicePackages, top) {
		return top
	}
	return ""
}

// importsOf yields the imports of a file, each with its place.
func (s source) imports(each func(imported string, at token.Pos)) {
	for _, spec := range s.file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			each(imported, spec.Pos())
		}
	}
}

// selections yields every pkg.Name in a file for a package imported as that
// path, with the top-level function it is in, if any.
func (s source) selections(imported string, each func(name string, at token.Pos, in *ast.FuncDecl)) {
	local := ""
	for _, spec := range s.file.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil && p == imported {
			local = path.Base(imported)
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	if local == "" {
		return
	}
	for _, decl := range s.file.Decls {
		fn, _ := decl.(*ast.FuncDecl)
		ast.Inspect(decl, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
					each(sel.Sel.Name, sel.Pos(), fn)
				}
			}
			return true
		})
	}
}

// report says that something at a place is not as the rule has it.
type report func(s source, at token.Pos, format string, args ...any)

// rule is one thing that the source keeps to.
type rule struct {
	name, why string
	check     func(tree []source, report report)
}

// each makes a rule's check of one that looks at a file at a time.
func each(check func(s source, report report)) func([]source, report) {
	return func(tree []source, report report) {
		for _, s := range tree {
			check(s, report)
		}
	}
}

var rules = []rule{
	{
		name: "services apart",
		why:  "a service runs alone; what two of them share is a topic, or a package in internal",
		check: each(func(s source, report report) {
			s.imports(func(imported string, at token.Pos) {
				top, _, _ := strings.Cut(strings.TrimPrefix(imported, here), "/")
				if s.service() != "" && strings.HasPrefix(imported, here) && slices.Contains(servicePackages, top) && top != s.service() {
					report(s, at, "%s imports %s", s.service(), top)
				}
			})
		}),
	},
	{
		name: "internal knows no service",
		why:  "what every service uses must not change when one of them does",
		check: each(func(s source, report report) {
			s.imports(func(imported string, at token.Pos) {
				top, _, _ := strings.Cut(strings.TrimPrefix(imported, here), "/")
				if strings.HasPrefix(s.path, "internal/") && strings.HasPrefix(imported, here) && top != "internal" {
					report(s, at, "imports %s", imported)
				}
			})
		}),
	},
	{
		name: "commands are thin",
		why:  "a process is put together in cmd and nowhere else; a command of one service that joined another would be a fifth service",
		check: each(func(s source, report report) {
			s.imports(func(imported string, at token.Pos) {
				top, _, _ := strings.Cut(strings.TrimPrefix(imported, here), "/")
				command, inCmd := strings.CutPrefix(s.dir(), "cmd/")
				switch {
				case strings.HasPrefix(imported, here+"cmd/"):
					report(s, at, "imports a command")
				case inCmd && command != "tocsin" && slices.Contains(servicePackages, top) && top != command:
					report(s, at, "the command of %s imports %s", command, top)
				}
			})
		}),
	},
	{
		name: "adapters apart",
		why:  "the service joins its adapters, through small interfaces of whoever uses them; else a change in one is a change in all",
		check: each(func(s source, report report) {
			inside := s.service() + "/internal/"
			s.imports(func(imported string, at token.Pos) {
				room, ok := strings.CutPrefix(imported, here)
				switch {
				case s.service() == "" || !ok || !strings.HasPrefix(s.path, inside):
				case room == s.service():
					report(s, at, "imports the service package it belongs to")
				case slices.Contains(purePackages, room) || inner[room] != "" || s.isTest() && strings.HasSuffix(room, "test"):
				case strings.HasPrefix(room, inside) && room != s.dir():
					report(s, at, "imports %s", room)
				}
			})
		}),
	},
	{
		name: "pure imports",
		why:  "what decides is a function of its input: it can neither wait, read, write, log nor draw lots, so live, replay and recovery are one path",
		check: each(func(s source, report report) {
			if !s.pure() || s.isTest() {
				return
			}
			s.imports(func(imported string, at token.Pos) {
				if !slices.Contains(pureImports, imported) && !slices.Contains(purePackages, strings.TrimPrefix(imported, here)) {
					report(s, at, "imports %s", imported)
				}
			})
		}),
	},
	{
		name: "pure time",
		why:  "time is an argument of the machines; a clock or the machine's zone would make two runs differ",
		check: each(func(s source, report report) {
			if !s.pure() || s.isTest() {
				return
			}
			s.selections("time", func(name string, at token.Pos, _ *ast.FuncDecl) {
				if slices.Contains(clock, name) {
					report(s, at, "uses time.%s", name)
				}
			})
		}),
	},
	{
		name: "pure loops",
		why:  "a machine is stepped by one loop, which owns its state: there is nobody to wait for or to lock out",
		check: each(func(s source, report report) {
			if !s.pure() || s.isTest() {
				return
			}
			ast.Inspect(s.file, func(n ast.Node) bool {
				switch n.(type) {
				case *ast.GoStmt:
					report(s, n.Pos(), "starts a goroutine")
				case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
					report(s, n.Pos(), "uses a channel")
				}
				return true
			})
		}),
	},
	{
		name: "generated types",
		why:  "only codec and its callers see generated messages (seesGenerated says which and why), so that a change of a message has few places to go",
		check: each(func(s source, report report) {
			if !s.ours() || s.isTest() || seesGenerated[s.dir()] != "" {
				return
			}
			s.imports(func(imported string, at token.Pos) {
				if strings.HasPrefix(imported, generated) {
					report(s, at, "imports %s", imported)
				}
			})
		}),
	},
	{
		name: "one logger",
		why:  "the logger is passed in, with the service's name and the trace; the default one has neither",
		check: each(func(s source, report report) {
			if !s.ours() || s.isTest() || s.command() {
				return
			}
			s.selections("log/slog", func(name string, at token.Pos, _ *ast.FuncDecl) {
				if slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "Default", "SetDefault", "DebugContext", "InfoContext", "WarnContext", "ErrorContext"}, name) {
					report(s, at, "uses slog.%s", name)
				}
			})
			s.imports(func(imported string, at token.Pos) {
				if imported == "log" {
					report(s, at, "imports log")
				}
			})
		}),
	},
	{
		name: "foreign modules",
		why:  "each has a better answer here",
		check: each(func(s source, report report) {
			s.imports(func(imported string, at token.Pos) {
				for prefix, why := range foreign {
					if imported == prefix || strings.HasPrefix(imported, prefix+"/") {
						report(s, at, "imports %s: %s", imported, why)
					}
				}
			})
		}),
	},
	{
		name: "no sleep",
		why:  "a test that sleeps is slow or wrong, outside a synctest bubble, where time is free; a service that sleeps cannot be told to stop",
		check: func(tree []source, report report) {
			// The functions, by package, that make a bubble or wait in one.
			bubbles := map[string][]string{}
			for _, s := range tree {
				s.selections("testing/synctest", func(_ string, _ token.Pos, in *ast.FuncDecl) {
					if in != nil {
						bubbles[s.dir()] = append(bubbles[s.dir()], in.Name.Name)
					}
				})
			}
			for _, s := range tree {
				if s.double() && !s.isTest() {
					continue // a scripted server is slow on purpose
				}
				s.selections("time", func(name string, at token.Pos, in *ast.FuncDecl) {
					if name != "Sleep" {
						return
					}
					// What is no test is called by one; in a package with bubbles, there.
					isTest := in != nil && strings.HasPrefix(in.Name.Name, "Test")
					inBubble := in != nil && (mentions(in, "synctest") || slices.ContainsFunc(bubbles[s.dir()], func(f string) bool { return mentions(in, f) }))
					if s.isTest() && (inBubble || !isTest && len(bubbles[s.dir()]) > 0) {
						return
					}
					report(s, at, "uses time.Sleep")
				})
			}
		},
	},
	{
		name: "package comments",
		why:  "a stranger asks first what a package owns and what it does not do",
		check: func(tree []source, report report) {
			first := map[string]source{}
			said := map[string]bool{}
			for _, s := range tree {
				if s.isTest() {
					continue
				}
				key := s.dir() + " " + s.file.Name.Name
				if _, ok := first[key]; !ok {
					first[key] = s
				}
				want := "Package " + s.file.Name.Name + " "
				if s.command() {
					want = "Command "
				}
				if s.file.Doc != nil && strings.HasPrefix(s.file.Doc.Text(), want) {
					said[key] = true
				}
			}
			for key, s := range first {
				if !said[key] {
					report(s, s.file.Package, "package %s has no comment that begins with its name", s.file.Name.Name)
				}
			}
		},
	},
	{
		name: "package names",
		why:  "a package is named after what is in it",
		check: each(func(s source, report report) {
			if slices.Contains(emptyNames, strings.TrimSuffix(s.file.Name.Name, "_test")) {
				report(s, s.file.Name.Pos(), "is called %s", s.file.Name.Name)
			}
		}),
	},
	{
		name: "comments of a test",
		why:  "who sees a test fail wants to read first what it proves",
		check: each(func(s source, report report) {
			if !s.isTest() {
				return
			}
			for _, decl := range s.file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Recv != nil || fn.Name.Name == "TestMain" ||
					!strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
					continue
				}
				if fn.Doc == nil && !opensWithComment(s.file, fn) {
					report(s, fn.Pos(), "%s does not say what it proves", fn.Name.Name)
				}
			}
		}),
	},
	{
		name: "skips",
		why:  "a skipped test must say what would make it run",
		check: each(func(s source, report report) {
			if !s.isTest() {
				return
			}
			ast.Inspect(s.file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Skip" && len(call.Args) == 0 || sel.Sel.Name == "SkipNow") {
					report(s, n.Pos(), "skips without a reason")
				}
				return true
			})
		}),
	},
	{
		name: "exceptions have reasons",
		why:  "a //nolint that names neither linter nor reason switches off what nobody has thought of",
		check: each(func(s source, report report) {
			comments(s, func(text string, at token.Pos) {
				directive, ok := strings.CutPrefix(text, "//nolint")
				if !ok {
					return
				}
				linters, reason, _ := strings.Cut(directive, "//")
				if !strings.HasPrefix(linters, ":") || strings.TrimSpace(linters) == ":" || strings.TrimSpace(reason) == "" {
					report(s, at, "%s: write //nolint:linter // reason", text)
				}
			})
		}),
	},
	{
		name: "nothing left to do",
		why:  "what is missing is an issue, not a comment",
		check: each(func(s source, report report) {
			comments(s, func(text string, at token.Pos) {
				for _, mark := range []string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"} {
					if strings.Contains(text, mark) {
						report(s, at, "a comment with %s", mark)
					}
				}
			})
		}),
	},
}

// mentions says whether an identifier occurs in a function.
func mentions(fn *ast.FuncDecl, name string) bool {
	found := false
	ast.Inspect(fn, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// opensWithComment says whether a function's body begins with a comment.
func opensWithComment(file *ast.File, fn *ast.FuncDecl) bool {
	end := fn.Body.Rbrace
	if len(fn.Body.List) > 0 {
		end = fn.Body.List[0].Pos()
	}
	for _, c := range file.Comments {
		if c.Pos() > fn.Body.Lbrace && c.Pos() < end {
			return true
		}
	}
	return false
}

func comments(s source, each func(text string, at token.Pos)) {
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			each(c.Text, c.Pos())
		}
	}
}

// check holds a tree to some rules and returns what is wrong, in order.
func check(tree []source, rules []rule) []string {
	var found []string
	for _, r := range rules {
		r.check(tree, func(s source, at token.Pos, format string, args ...any) {
			found = append(found, fmt.Sprintf("%s:%d: %s\n\trule %q: %s", s.path, s.fset.Position(at).Line, fmt.Sprintf(format, args...), r.name, r.why))
		})
	}
	slices.Sort(found)
	return found
}

func parse(t *testing.T, name string, text any) source {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return source{path: filepath.ToSlash(name), file: file, fset: fset}
}

// readTree reads all Go files of this module and of the integration tests.
func readTree(t *testing.T) []source {
	t.Helper()
	var tree []source
	for _, root := range []string{".", "../integration"} {
		if _, err := os.Stat(root); err != nil {
			continue
		}
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && name != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
				return fs.SkipDir
			case !d.IsDir() && strings.HasSuffix(name, ".go"):
				tree = append(tree, parse(t, name, nil))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

// The source keeps to every rule.
func TestTidy(t *testing.T) {
	tree := readTree(t)
	if len(tree) < 10 {
		t.Fatalf("only %d files were found", len(tree))
	}
	for _, f := range check(tree, rules) {
		t.Error(f)
	}
	for _, p := range purePackages {
		if !slices.ContainsFunc(tree, func(s source) bool { return s.dir() == p }) {
			t.Errorf("%s is called pure but does not exist", p)
		}
	}
}

// Each rule finds what it forbids, where it forbids it, and leaves alone what
// looks like it.
func TestRules(t *testing.T) {
	const doc = "// Package x is one.\n"
	failed := map[string]bool{}
	const device, partition, account = "monitor/internal/device/d.go", "monitor/internal/partition/p.go", "gateway/internal/account/a.go"
	for _, tt := range []struct {
		rule, path, text string
		want             string // part of the finding; "" for none
	}{
		{"services apart", "monitor/m.go", `package x; import _ "` + here + `gateway"`, "monitor imports gateway"},
		{"services apart", partition, `package x; import _ "` + here + `console/internal/api"`, "monitor imports console"},
		{"services apart", "monitor/m.go", `package x; import _ "` + here + `monitor/internal/device"`, ""},
		{"services apart", "cmd/tocsin/up.go", `package main; import _ "` + here + `gateway"`, ""},

		{"internal knows no service", "internal/consume/c.go", `package x; import _ "` + here + `monitor"`, "imports"},
		{"internal knows no service", "internal/consume/c.go", `package x; import _ "` + here + `internal/kafka"`, ""},

		{"commands are thin", "cmd/monitor/main.go", `package main; import _ "` + here + `gateway"`, "command of monitor imports gateway"},
		{"commands are thin", "monitor/m.go", `package x; import _ "` + here + `cmd/tocsin"`, "imports a command"},
		{"commands are thin", "cmd/monitor/main.go", `package main; import _ "` + here + `monitor"`, ""},
		{"commands are thin", "cmd/tocsin/up.go", `package main; import _ "` + here + `gateway"`, ""},

		{"adapters apart", partition, `package x; import _ "` + here + `monitor/internal/changelog"`, "imports monitor/internal/changelog"},
		{"adapters apart", partition, `package x; import _ "` + here + `monitor"`, "service package it belongs to"},
		{"adapters apart", partition, `package x; import _ "` + here + `monitor/internal/device"`, ""},
		{"adapters apart", "console/internal/web/w.go", `package x; import _ "` + here + `console/internal/readmodel"`, ""},
		{"adapters apart", "monitor/internal/partition/p_test.go", `package x; import _ "` + here + `monitor/internal/fleettest"`, ""},
		{"adapters apart", partition, `package x; import _ "` + here + `monitor/internal/fleettest"`, "imports monitor/internal/fleettest"},
		{"adapters apart", "monitor/m.go", `package x; import _ "` + here + `monitor/internal/partition"`, ""},
		{"adapters apart", "monitor/internal/partition/p_test.go", `package x_test; import _ "` + here + `monitor/internal/partition"`, ""},

		{"pure imports", device, `package x; import _ "os"`, "imports os"},
		{"pure imports", device, `package x; import _ "math/rand/v2"`, "imports math/rand/v2"},
		{"pure imports", device, `package x; import _ "context"`, "imports context"},
		{"pure imports", account, `package x; import _ "` + generated + `event/v1"`, "imports"},
		{"pure imports", account, `package x; import _ "github.com/twmb/franz-go/pkg/kgo"`, "imports"},
		{"pure imports", account, `package x; import _ "` + here + `internal/codec"`, "imports"},
		{"pure imports", account, `package x; import _ "` + here + `gateway/internal/schedule"; import _ "time"`, ""},
		{"pure imports", "gateway/internal/account/a_test.go", `package x; import _ "os"`, ""},
		{"pure imports", partition, `package x; import _ "os"`, ""},

		{"pure time", device, `package x; import "time"; var a = time.Now()`, "uses time.Now"},
		{"pure time", device, `package x; import "time"; var a = time.Local`, "uses time.Local"},
		{"pure time", account, `package x; import tm "time"; func f() { tm.Sleep(1) }`, "uses time.Sleep"},
		{"pure time", account, `package x; import "time"; var f = time.LoadLocation`, "uses time.LoadLocation"},
		{"pure time", device, `package x; import "time"; var a = time.Unix(1, 0).Add(time.Second)`, ""},
		{"pure time", partition, `package x; import "time"; var a = time.Now()`, ""},

		{"pure loops", device, `package x; func f() { go f() }`, "starts a goroutine"},
		{"pure loops", device, `package x; var c chan int`, "uses a channel"},
		{"pure loops", partition, `package x; func f() { go f() }`, ""},

		{"generated types", "internal/admin/a.go", `package x; import _ "` + generated + `event/v1"`, "imports"},
		{"generated types", "cmd/monitor/main.go", `package main; import _ "` + generated + `event/v1"`, "imports"},
		{"generated types", "internal/codec/c.go", `package x; import _ "` + generated + `event/v1"`, ""},
		{"generated types", "../integration/a_test.go", `package x; import _ "` + generated + `event/v1"`, ""},

		{"one logger", "monitor/m.go", `package x; import "log/slog"; func f() { slog.Info("x") }`, "uses slog.Info"},
		{"one logger", "monitor/m.go", `package x; import "log"; func f() { log.Print("x") }`, "imports log"},
		{"one logger", "monitor/m.go", `package x; import "log/slog"; func f(l *slog.Logger) { l.Info("x", slog.String("a", "b")) }`, ""},

		{"foreign modules", "monitor/m_test.go", `package x; import _ "github.com/stretchr/testify/require"`, "go-cmp"},
		{"foreign modules", "monitor/m_test.go", `package x; import _ "github.com/google/go-cmp/cmp"`, ""},

		{"no sleep", "monitor/m_test.go", `package x; import "time"; func TestX() { time.Sleep(1) }`, "uses time.Sleep"},
		{"no sleep", "monitor/m_test.go", `package x; import ("time"; "testing/synctest"); func TestX() { time.Sleep(1) }; func TestY() { synctest.Wait() }`, "uses time.Sleep"},
		{"no sleep", "monitor/m.go", `package x; import "time"; func f() { time.Sleep(1) }`, "uses time.Sleep"},
		{"no sleep", "../integration/m_test.go", `package x; import "time"; func TestX() { time.Sleep(1) }`, "uses time.Sleep"},
		{"no sleep", "monitor/m_test.go", `package x; import ("time"; "testing/synctest"); func TestX(t *T) { synctest.Test(t, func() { time.Sleep(1) }) }; func wait() { time.Sleep(1) }`, ""},
		{"no sleep", "monitor/m_test.go", `package x; import ("time"; "testing/synctest"); func TestX(t *T) { in(t, func() { time.Sleep(1) }) }; func in() { synctest.Test() }`, ""},
		{"no sleep", "internal/smtptest/s.go", `package smtptest; import "time"; func f() { time.Sleep(1) }`, ""},

		{"package comments", "monitor/m.go", "package x", "package x has no comment"},
		{"package comments", "monitor/m.go", "// It is one.\npackage x", "package x has no comment"},
		{"package comments", "cmd/x/main.go", "// Package main is one.\npackage main", "package main has no comment"},
		{"package comments", "monitor/m.go", doc + "package x", ""},
		{"package comments", "cmd/x/main.go", "// Command x is one.\npackage main", ""},

		{"package names", "monitor/m.go", "package util", "is called util"},
		{"package names", "monitor/m.go", "package deadline", ""},

		{"comments of a test", "monitor/m_test.go", "package x\nfunc TestX() { f() }", "TestX does not say"},
		{"comments of a test", "monitor/m_test.go", "package x\nfunc FuzzX() { f()\n// late\n}", "FuzzX does not say"},
		{"comments of a test", "monitor/m_test.go", "package x\n// Proves.\nfunc TestX() {}\nfunc TestY() {\n// Proves.\nf() }\nfunc TestMain() {}\nfunc help() {}", ""},

		{"skips", "monitor/m_test.go", `package x; func f() { t.Skip() }`, "skips without"},
		{"skips", "monitor/m_test.go", `package x; func f() { t.SkipNow() }`, "skips without"},
		{"skips", "monitor/m_test.go", `package x; func f() { t.Skip("needs Docker") }`, ""},

		{"exceptions have reasons", "monitor/m.go", "package x //nolint", "write //nolint:linter // reason"},
		{"exceptions have reasons", "monitor/m.go", "package x //nolint:errcheck", "write //nolint:linter // reason"},
		{"exceptions have reasons", "monitor/m.go", "package x //nolint // because", "write //nolint:linter // reason"},
		{"exceptions have reasons", "monitor/m.go", "package x //nolint:errcheck // it is over either way", ""},

		{"nothing left to do", "monitor/m.go", "package x // TO" + "DO: more", "a comment with"},
		{"nothing left to do", "monitor/m.go", "package x // what is done", ""},
	} {
		if tt.want != "" {
			failed[tt.rule] = true
		}
		i := slices.IndexFunc(rules, func(r rule) bool { return r.name == tt.rule })
		if i < 0 {
			t.Fatalf("there is no rule %q", tt.rule)
		}
		found := check([]source{parse(t, tt.path, tt.text)}, rules[i:i+1])
		switch {
		case tt.want == "" && len(found) > 0:
			t.Errorf("rule %q forbids %s in %s: %v", tt.rule, tt.text, tt.path, found)
		case tt.want != "" && (len(found) == 0 || !strings.Contains(found[0], tt.want)):
			t.Errorf("rule %q finds %v for %s in %s, want %q", tt.rule, found, tt.text, tt.path, tt.want)
		}
	}
	for _, r := range rules {
		if r.why == "" {
			t.Errorf("rule %q has no reason", r.name)
		}
		if !failed[r.name] {
			t.Errorf("rule %q was never seen to forbid anything", r.name)
		}
	}
}
