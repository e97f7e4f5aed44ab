package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// binaries are built once a run, all five together, when the first is asked for.
var binaries built

type built struct {
	once sync.Once
	dir  string
	err  error
}

// Binary is the path of one of Tocsin's five binaries, built from this tree.
func Binary(t testing.TB, name string) string {
	t.Helper()
	binaries.once.Do(binaries.build)
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}
	return filepath.Join(binaries.dir, name)
}

// Root is the top of the source tree.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			panic("harness: no go.work above the tests: they run inside the source tree only")
		}
		dir = parent
	}
}

func (b *built) build() {
	if b.dir, b.err = os.MkdirTemp("", "tocsin-bin-"); b.err != nil {
		return
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", b.dir+string(filepath.Separator), "./cmd/...")
	cmd.Dir = filepath.Join(Root(), "services")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.err = fmt.Errorf("build the binaries: %w\n%s", err, out)
	}
}

func (b *built) remove() {
	if b.dir != "" {
		os.RemoveAll(b.dir)
	}
}
