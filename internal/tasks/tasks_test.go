package tasks

import (
	"slices"
	"testing"
	"testing/synctest"
)

func TestTasksStartWithTheirGroupAndEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New()
		begun, ended := make(chan string, 3), make(chan string, 3)
		task := func(name string) func() {
			return func() {
				begun <- name
				<-g.Lifetime().Done()
				ended <- name
			}
		}
		g.Start(task("early"))
		synctest.Wait()
		if len(begun) != 0 {
			t.Error("a task has started before the group runs")
		}
		if !g.Run() || g.Run() {
			t.Error("a group runs other than once")
		}
		g.Start(task("late"))
		synctest.Wait()
		if len(begun) != 2 || len(ended) != 0 {
			t.Errorf("%d tasks have started, and %d have ended", len(begun), len(ended))
		}
		g.Stop()
		if got := []string{<-ended, <-ended}; !slices.Contains(got, "early") || !slices.Contains(got, "late") {
			t.Errorf("%q have ended before Stop returned", got)
		}
		g.Start(task("never"))
		synctest.Wait()
		if len(begun) != 2 || g.Run() {
			t.Error("something starts after the end")
		}
	})
}

func TestAGroupThatNeverRanEndsWithoutItsTasks(t *testing.T) {
	g := New()
	g.Start(func() { t.Error("a task has started") })
	g.Stop()
	if g.Run() {
		t.Error("a group that has ended runs")
	}
}
