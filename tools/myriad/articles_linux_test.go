package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
)

var (
	shell = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// program is a row of a table with the arguments of two servers and a load.
	program = regexp.MustCompile("(?m)^\\|\\d+\\|[^|`]*\\|`(.*?)`\\|`(.*?)`\\|`(.*?)`\\|$")
)

// appendProgramBlocks adds the rows of a document's program tables to it as shell blocks.
func appendProgramBlocks(document string) string {
	for _, row := range program.FindAllStringSubmatch(document, -1) {
		client := "load " + row[3]
		if !strings.Contains(client, "--messages") {
			client += " --duration 1s"
		}
		for _, server := range []string{"plain " + row[1], "serve " + row[2]} {
			document += "\n```sh\nmyriad " + server + " &\nsleep 1\nmyriad " + client + " 127.0.0.1:9000\nkill $!; wait\n```"
		}
	}
	return document
}

// shellCommands returns the commands of a document's shell blocks and program tables, without comments.
func shellCommands(document string) (all []string) {
	for _, block := range shell.FindAllStringSubmatch(appendProgramBlocks(document), -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
			command, _, _ := strings.Cut(line, "#")
			if command = strings.TrimSpace(command); command != "" {
				all = append(all, command)
			}
		}
	}
	return all
}

// readArticles returns the English articles by path.
func readArticles(t *testing.T) map[string]string {
	t.Helper()
	texts := readDocuments(t)
	for file := range texts {
		if !strings.Contains(file, "/articles/") || strings.HasSuffix(file, inChinese+".md") {
			delete(texts, file)
		}
	}
	if len(texts) < 4 {
		t.Fatalf("%d pages of articles, want 4 at least", len(texts))
	}
	return texts
}

// releaseCommands match commands of articles that take more than a minute, and releaseBlocks match shell blocks that
// change the whole machine. They run only if MYRIAD_TEST_RELEASE is set, as in .ci/release.
var (
	releaseCommands = regexp.MustCompile(`^myriad (article|bench) |--duration[= ](30s|60s)`)
	releaseBlocks   = regexp.MustCompile(`(?m)^(sysctl -w|nft) `)
)

// shellPrelude prepares a shell in a network namespace. There, "sleep 1" waits until a server listens, because a busy
// machine may need longer than the reader's second.
const shellPrelude = `set -u
export PATH=$PWD:$PATH GOFLAGS=-trimpath
ip link set lo up
sleep() {
	[ "$1" = 1 ] || { command sleep "$1"; return; }
	for _ in {1..1200}; do
		command sleep 0.05
		! grep -qs ' 0A ' /proc/net/tcp /proc/net/tcp6 || return 0
	done
	return 1
}
failed() { echo "FAILED: $1"; exit 1; }
trap 'failed "$BASH_COMMAND"' ERR
`

// makeShellScript returns a shell block as a script that fails as soon as a command does. A comment states that a
// command exits with 1, or may do so.
func makeShellScript(block string, release bool) string {
	if !release && releaseBlocks.MatchString(block) {
		return ""
	}
	script := shellPrelude
	for line := range strings.Lines(block) {
		command, comment, _ := strings.Cut(strings.TrimSpace(line), " #")
		switch {
		case !release && releaseCommands.MatchString(line):
			continue
		case strings.Contains(comment, "may exit with 1"), strings.HasPrefix(line, "myriad doctor "): // the machine may lack something
			line = command + " || [ $? = 1 ]\n"
		case strings.Contains(comment, "exits with 1"):
			line = "if " + command + "; then failed 'exit code 0, want 1'; fi\n"
		}
		script += line
	}
	return script + "exit 0\n"
}

// TestArticles runs the shell blocks and the program tables of docs/articles as a reader types them. Each has a bash of
// its own in a copy of the repository, and namespaces of its own, so that all ports are free and nothing is left over.
// That takes minutes: without MYRIAD_TEST_FULL or MYRIAD_TEST_RELEASE, bash only parses them.
func TestArticles(t *testing.T) {
	skipIfShort(t)
	release, bash := os.Getenv("MYRIAD_TEST_RELEASE") != "", []string{"bash"}
	if !release && os.Getenv("MYRIAD_TEST_FULL") == "" {
		bash = []string{"bash", "-n"}
	}
	if out, err := exec.Command("unshare", "-n", "-p", "-f", "--mount-proc", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Skipf("no namespaces: %v: %s", err, out)
	}
	self, err := os.Executable()
	testkit.RequireNoError(t, err)
	files, err := filepath.Glob("../../[A-Za-z]*")
	testkit.RequireNoError(t, err)
	for file, text := range readArticles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if out, err := exec.Command("cp", append([]string{"-r", "-t", dir}, files...)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			testkit.RequireNoError(t, os.Symlink(self, filepath.Join(dir, "myriad")))
			for _, block := range shell.FindAllStringSubmatch(appendProgramBlocks(text), -1) {
				script := makeShellScript(block[1], release)
				if script == "" {
					continue
				}
				cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"-n", "-p", "-f", "--mount-proc", "--kill-child"}, bash...)...)
				cmd.Dir, cmd.Stdin = dir, strings.NewReader(script) // not a file, as a shell in the block reads on
				began := time.Now()
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v in\n%s\n%.5000s", err, block[1], out)
				}
				t.Logf("%.1f s: %.60q", time.Since(began).Seconds(), block[1])
			}
		})
	}
}

// TestArticleTables checks that the tables and charts of the articles are those of their results.
func TestArticleTables(t *testing.T) {
	const docs = "../../docs"
	for name := range articles {
		set, err := readArticleResults(docs, name)
		testkit.RequireNoError(t, err)
		if *update {
			testkit.RequireNoError(t, writeArticle(docs, name, set))
		}
		for _, language := range []string{"", inChinese} {
			page, err := os.ReadFile(articlePage(docs, name, language))
			testkit.RequireNoError(t, err)
			want, chart, err := report.UpdateArticle(string(page), set, language == inChinese)
			testkit.RequireNoError(t, err)
			if want != string(page) || chart == "" {
				t.Errorf("%s%s: a table differs from docs/results/%[1]s.json, or there is no chart; run myriad article %[1]s", name, language)
			}
			if n := len(strings.Fields(want)); n > 1200 {
				t.Errorf("%s%s: %d words, want 1,200 at most", name, language, n)
			}
			if got, err := os.ReadFile(filepath.Join(docs, "results", name+language+".svg")); err != nil || string(got) != chart {
				t.Errorf("%s%s.svg differs from the results, %v; run myriad article %[1]s", name, language, err)
			}
		}
	}
}

// TestArticleCommand repeats a run of a page: only figures and the origin of that table change. With --dry-run, the
// number of runs and their time are printed without a run.
func TestArticleCommand(t *testing.T) {
	skipIfShort(t)
	docs := t.TempDir()
	for _, dir := range []string{"articles", "results"} {
		testkit.RequireNoError(t, os.CopyFS(filepath.Join(docs, dir), os.DirFS("../../docs/"+dir)))
	}
	read := func() (set *result.Set, prose string) {
		set, err := readArticleResults(docs, "ten-thousand")
		testkit.RequireNoError(t, err)
		page, err := os.ReadFile(articlePage(docs, "ten-thousand", ""))
		testkit.RequireNoError(t, err)
		return set, regexp.MustCompile(`(?m)^(Commit |\|).*$`).ReplaceAllString(string(page), "$1")
	}
	before, prose := read()
	line := "article ten-thousand --scale small --only ^log-1000/epoll$ --docs " + docs
	invokeLine(t, line).checkOutcome(t, "myriad "+line, 0)
	after, proseAfter := read()
	if after.CountRuns() != before.CountRuns() || !after.Reports[0].Runs[0].Started.After(before.Date) {
		t.Errorf("got %d runs, the first of %v; want %d, one new", after.CountRuns(), after.Reports[0].Runs[0].Started, before.CountRuns())
	}
	if proseAfter != prose {
		t.Errorf("the text has become %q; want %q", proseAfter, prose)
	}
	line = "article adaptive-pool --dry-run --only ^published-1M/ours$ --rounds 2 --docs " + docs
	invokeLine(t, line).checkOutcome(t, line, 0, "adaptive-pool, scale published: 2 runs, 2 minutes")
}

// Each published design serves in several processes, too.
func TestPlainProcesses(t *testing.T) {
	for _, design := range []string{"goroutine", "epolls", "reactor"} {
		s := serveLine(t, "plain --loops 2 --processes 2 --design "+design)
		line := "load -c 20 --messages 3 " + s.addr
		invokeLine(t, line).checkOutcome(t, design+": "+line, 0)
		s.stop()
	}
}

var number = regexp.MustCompile(`\d+(?:[,.]\d+)*`)

// A page in Chinese has the commands, the other blocks and the figures in tables of the one in English.
func TestChinese(t *testing.T) {
	pages := readArticles(t)
	pages["../../README.md"] = readDocuments(t)["../../README.md"]
	parts := func(text string) (commands, blocks, figures []string) {
		commands = shellCommands(text)
		blocks = slices.DeleteFunc(fence.FindAllString(text, -1), func(block string) bool { return strings.HasPrefix(block, "```sh") })
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "|") {
				figures = append(figures, number.FindAllString(line, -1)...)
			}
		}
		return commands, blocks, figures
	}
	for file, english := range pages {
		other := strings.TrimSuffix(file, ".md") + inChinese + ".md"
		text, err := os.ReadFile(other)
		testkit.RequireNoError(t, err)
		commands, blocks, figures := parts(english)
		otherCommands, otherBlocks, otherFigures := parts(string(text))
		checkSameList(t, other+": command", commands, otherCommands)
		checkSameList(t, other+": block", blocks, otherBlocks)
		checkSameList(t, other+": figure in a table", figures, otherFigures)
	}
}

// checkSameList says what the first difference of two lists is.
func checkSameList(t *testing.T, what string, english, other []string) {
	t.Helper()
	i := 0
	for i < min(len(english), len(other)) && english[i] == other[i] {
		i++
	}
	if i < max(len(english), len(other)) {
		t.Errorf("%s %d is %q; in English it is %q", what, i, other[i:min(i+1, len(other))], english[i:min(i+1, len(english))])
	}
}
