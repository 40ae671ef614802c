package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// sourceFile is a file of a document: a code block after a comment with its name.
var sourceFile = regexp.MustCompile("(?s)<!-- file (\\S+) -->\n```go\n(.*?)```")

// tutorial follows docs/getting-started.md. The files of the reader's module are an overlay of a folder in examples.
type tutorial struct {
	t         *testing.T
	dir, addr string
	sections  []string
	overlay   struct{ Replace map[string]string }
}

func newTutorial(t *testing.T) *tutorial {
	const headings = 7 // before the first section, the five steps, and Next
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	defer l.Close()
	text := readDocuments(t)["../../docs/getting-started.md"]
	s := &tutorial{t: t, dir: t.TempDir(), addr: l.Addr().String()}
	// Less load, and no test asserts a speed.
	text = strings.NewReplacer(
		"127.0.0.1:9000", s.addr, "p99<500ms", "p99<1m", "--tls-ca cert.pem", "--tls-ca "+s.dir+"/cert.pem",
		"-c 100 --rate 5k --duration 5s", "-c 20 --rate 1k --duration 50ms", "-n 1000 --duration 10s", "-n 20 --duration 50ms",
	).Replace(text)
	s.sections = strings.Split(text, "\n## ")
	s.overlay.Replace = map[string]string{}
	if len(s.sections) != headings {
		t.Fatalf("%d sections, want %d: change the test with the tutorial", len(s.sections), headings)
	}
	return s
}

func (s *tutorial) writeFiles(step int) {
	for _, m := range sourceFile.FindAllStringSubmatch(s.sections[step], -1) {
		s.writeFile(m[1], m[2])
	}
}

func (s *tutorial) writeFile(name, text string) {
	examples, err := filepath.Abs("../../examples")
	testkit.RequireNoError(s.t, err)
	file := filepath.Join(s.dir, name)
	testkit.RequireNoError(s.t, os.WriteFile(file, []byte(text), 0o600))
	s.overlay.Replace[filepath.Join(examples, "tutorial", name)] = file
}

func (s *tutorial) runGo(args ...string) {
	s.t.Helper()
	list, err := json.Marshal(s.overlay)
	testkit.RequireNoError(s.t, err)
	overlay := filepath.Join(s.dir, "overlay.json")
	testkit.RequireNoError(s.t, os.WriteFile(overlay, list, 0o600))
	cmd := exec.Command("go", append([]string{args[0], "-overlay", overlay}, append(args[1:], "./tutorial")...)...)
	cmd.Dir = "../../examples"
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("go %q: %v\n%s", args, err, out)
	}
}

// start builds the program and runs it until stop is called.
func (s *tutorial) start() (p *testkit.Process, stop func()) {
	s.t.Helper()
	s.runGo("build", "-o", s.dir+"/chat")
	cmd := exec.Command(s.dir + "/chat")
	cmd.Dir = s.dir
	output, err := os.Create(s.dir + "/output") // a file, because the program's successor writes to it, too
	testkit.RequireNoError(s.t, err)
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	p = testkit.Start(s.t, cmd)
	testkit.WaitFor(s.t, "the program does not listen", func() bool {
		nc, err := net.Dial("tcp", s.addr)
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	return p, func() {
		p.Signal(os.Interrupt)
		if code := p.WaitExitCode(); code != 0 {
			s.t.Errorf("the program ended with %d after an interrupt: %s", code, s.read("output"))
		}
	}
}

func (s *tutorial) read(name string) string {
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	testkit.RequireNoError(s.t, err)
	return string(text)
}

// runCommand runs the command of a step that is myriad's, in this process.
func (s *tutorial) runCommand(step int) {
	s.t.Helper()
	found := 0
	for _, command := range shellCommands(s.sections[step]) {
		if line, ok := strings.CutPrefix(command, "myriad "); ok {
			invokeLine(s.t, strings.ReplaceAll(line, "'", "")).checkOutcome(s.t, command, 0)
			found++
		}
	}
	if found != 1 {
		s.t.Errorf("step %d has %d commands of myriad, want 1", step, found)
	}
}

// TestTutorial does what docs/getting-started.md says, in order.
func TestTutorial(t *testing.T) {
	skipIfShort(t)
	s := newTutorial(t)
	s.writeFiles(1)
	_, stop := s.start()
	testkit.Dial(t, s.addr).ExchangeLine("hello", "hello")
	s.runCommand(1)
	stop()

	s.writeFiles(2)
	_, stop = s.start()
	ann, bob := testkit.Dial(t, s.addr), testkit.Dial(t, s.addr)
	ann.Expect("Your name?\n")
	ann.ExchangeLine("Ann", "Welcome, Ann.")
	bob.Expect("Your name?\n")
	bob.ExchangeLine("Bob", "Welcome, Bob.")
	bob.ExchangeLine("hello", "Bob: hello")
	ann.Expect("Bob: hello\n")
	ann.ExchangeLine("hello, Bob", "Ann: hello, Bob")
	ann.Close()
	bob.Close()
	stop()

	s.writeFiles(3)
	s.runGo("test", "-c", "-vet=off", "-o", s.dir+"/room.test") // vet needs a folder
	if out, err := exec.Command(s.dir + "/room.test").CombinedOutput(); err != nil {
		t.Errorf("the test of step 3: %v\n%s", err, out)
	}

	s.writeFiles(4)
	cmd := exec.Command("bash", "-ec", shell.FindStringSubmatch(s.sections[4])[1])
	cmd.Dir = s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the command that creates a certificate: %v\n%s", err, out)
	}
	_, stop = s.start()
	s.runCommand(4)
	stop()

	s.writeFiles(5)
	p, _ := s.start()
	ann = s.dialTLS()
	ann.ExchangeLine("Ann", "Welcome, Ann.")
	s.writeFile("room.go", strings.ReplaceAll(s.read("room.go"), "Welcome", "Hello"))
	s.runGo("build", "-o", s.dir+"/chat")
	p.Signal(syscall.SIGUSR2)
	upgraded := regexp.MustCompile(`upgraded pid=(\d+) connections=1 lost=0`)
	testkit.WaitForFunc(t, func() bool { return upgraded.MatchString(s.read("output")) }, func() string { return "no upgrade in " + s.read("output") })
	successor, err := strconv.Atoi(upgraded.FindStringSubmatch(s.read("output"))[1])
	testkit.RequireNoError(t, err)
	defer syscall.Kill(successor, syscall.SIGKILL)
	ann.ExchangeLine("still here", "Ann: still here")
	s.dialTLS().ExchangeLine("Eve", "Hello, Eve.")
}

// dialTLS connects and reads the question for a name.
func (s *tutorial) dialTLS() *testkit.Conn {
	s.t.Helper()
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(s.read("cert.pem")))
	c := testkit.DialTLS(s.t, s.addr, &tls.Config{RootCAs: trusted, ServerName: "127.0.0.1"})
	c.Expect("Your name?\n")
	return c
}
