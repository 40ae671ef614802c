package models_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain lets more cases of the suite run at once than there are processors: most of
// them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
