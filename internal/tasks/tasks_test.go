package tasks

import (
	"testing"
	"testing/synctest"
)

func TestTasksStartWithTheirGroupAndEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New()
		begun, ended := make(chan bool, 3), make(chan bool, 3)
		task := func() {
			begun <- true
			<-g.Lifetime().Done()
			ended <- true
		}
		g.Start(task)
		synctest.Wait()
		if len(begun) != 0 {
			t.Error("a task has started before the group runs")
		}
		if !g.Run() || g.Run() {
			t.Error("a group runs other than once")
		}
		g.Start(task)
		synctest.Wait()
		if len(begun) != 2 || len(ended) != 0 {
			t.Errorf("%d tasks have started, and %d have ended", len(begun), len(ended))
		}
		g.Stop()
		if len(ended) != 2 {
			t.Errorf("%d tasks have ended when Stop returns, want both", len(ended))
		}
		g.Start(task)
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
