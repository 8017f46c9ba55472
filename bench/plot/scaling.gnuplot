# scaling.gnuplot: seconds by ranks and threads. Columns: ranks, threads, seconds, ratio to 1 x 2.
set terminal svg size 560,330 font "sans-serif,12" background "white"
set output picture
set style fill solid 0.9 noborder
set boxwidth 0.6
set xtics nomirror scale 0
set ytics nomirror
set border 3
set grid ytics lc rgb "#dddddd"
set yrange [0:*]
set offsets 0.5, 0.5, 0.1, 0
unset key
set ylabel "seconds"
set xlabel "ranks x threads"
set title "splitkv prefill, 8 heads of 128, 4096 tokens, fp32\n{/*0.8 ".cpu."}"
way(r, t) = sprintf("%d x %d", r, t)
plot data using 0:3:xtic(way($1, $2)) with boxes linecolor rgb "#1f6f8b", \
     '' using 0:3:(sprintf("%.2f s", $3)) with labels offset 0,0.7 font ",11"
